"""Sizes as a person reads them."""

_UNITS = ("bytes", "KiB", "MiB", "GiB")
_STEP = 1024


def size_text(size: int) -> str:
    """So many bytes, in the largest unit that leaves a number over 1."""
    number, unit = float(size), 0
    while number >= _STEP and unit < len(_UNITS) - 1:
        number /= _STEP
        unit += 1
    return f"{number:.0f} {_UNITS[unit]}" if not unit else f"{number:.1f} {_UNITS[unit]}"
