"""Draws what is in a table. Knows nothing of tools."""

import io
from typing import Any

import polars as pl
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT, MARGIN, GAP, HEAD = 1_280, 860, 36, 28, 34
INK, FAINT, GROUND, PANEL = (33, 41, 54), (110, 122, 140), (250, 251, 253), (255, 255, 255)
RULE, COLOUR, DOT = (225, 230, 238), (47, 111, 188), (47, 111, 188, 46)
BINS, BARS, LETTERS, EXACT = 40, 8, 18, 1_000

Box = tuple[int, int, int, int]
"""Left, top, right, bottom."""


class Chart:
    """A picture of panels: where numbers lie, how they are spread, and which texts are the commonest."""

    def __init__(self, title: str) -> None:
        self._image = Image.new("RGB", (WIDTH, HEIGHT), GROUND)
        self._pen = ImageDraw.Draw(self._image, "RGBA")
        self._pen.text((MARGIN, MARGIN - 14), title, INK, _font(26))

    def png(self) -> bytes:
        """The picture. It has few colours, and so few bytes."""
        file = io.BytesIO()
        self._image.quantize(64, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        return file.getvalue()

    def scatter(self, box: Box, across: pl.Series, along: pl.Series) -> None:
        """Two columns of numbers, a dot for each row."""
        inner = self._panel(box, f"{across.name} (across) and {along.name}")
        points = pl.DataFrame({"x": across.cast(float), "y": along.cast(float)}).drop_nulls()
        (left, right), (low, high) = _extent(points["x"]), _extent(points["y"])
        for x, y in points.iter_rows():
            at = inner[0] + (x - left) / (right - left) * (inner[2] - inner[0])
            up = inner[3] - (y - low) / (high - low) * (inner[3] - inner[1])
            self._pen.rectangle((at - 1, up - 1, at + 1, up + 1), DOT)
        self._ends(inner, left, right)

    def histogram(self, box: Box, column: pl.Series) -> None:
        """A column of numbers, by how many lie where."""
        inner = self._panel(box, column.name)
        values = column.drop_nulls().cast(float)
        low, high = _extent(values)
        places = ((values - low) / (high - low) * BINS).cast(int).clip(0, BINS - 1)
        counts = dict(places.value_counts().iter_rows())
        most, step = max(counts.values(), default=1), (inner[2] - inner[0]) / BINS
        for place, count in counts.items():
            left = inner[0] + place * step
            top = inner[3] - max(count / most * (inner[3] - inner[1]), 1)
            self._pen.rectangle((left, top, left + step - 2, inner[3]), COLOUR)
        self._ends(inner, low, high)

    def bars(self, box: Box, column: pl.Series) -> None:
        """The commonest texts of a column."""
        inner = self._panel(box, column.name)
        counts = column.drop_nulls().value_counts(name="count", sort=True).head(BARS)
        # There is no axis to leave room for.
        most, step = counts["count"].max() or 1, (inner[3] + 16 - inner[1]) / BARS
        start = inner[0] + 150
        for place, (text, count) in enumerate(counts.iter_rows()):
            top = inner[1] + place * step
            self._pen.text((start - 10, top + step / 2), _short(str(text)), INK, _font(14), anchor="rm")
            end = start + count / most * (inner[2] - start - 70)
            self._pen.rectangle((start, top + 3, end, top + step - 4), COLOUR)
            self._pen.text((end + 8, top + step / 2), f"{count:,}", FAINT, _font(13), anchor="lm")

    def _panel(self, box: Box, title: str) -> Box:
        """Draws an empty panel; answers where its content goes."""
        left, top, right, bottom = box
        self._pen.rounded_rectangle(box, 8, PANEL, RULE)
        self._pen.text((left + 16, top + 11), title, INK, _font(16))
        return left + 16, top + HEAD + 8, right - 16, bottom - 30

    def _ends(self, inner: Box, low: float, high: float) -> None:
        """The axis below a panel, with where it begins and ends."""
        self._pen.line((inner[0], inner[3] + 1, inner[2], inner[3] + 1), RULE)
        self._pen.text((inner[0], inner[3] + 7), _written(low), FAINT, _font(13))
        self._pen.text((inner[2], inner[3] + 7), _written(high), FAINT, _font(13), anchor="ra")


def draw(name: str, table: pl.DataFrame) -> bytes:
    """A picture of a table, as PNG."""
    chart = Chart(f"{name}: {table.height:,} rows, {table.width} columns")
    numbers = [column for column in table if column.dtype.is_numeric() and column.n_unique() > 1]
    texts = [column for column in table if not column.dtype.is_numeric() and column.n_unique() > 1]
    texts.sort(key=pl.Series.n_unique)
    middle, side = HEIGHT * 3 // 5, WIDTH * 3 // 5
    top, bottom = MARGIN + HEAD, HEIGHT - MARGIN
    if len(numbers) > 1:
        # Where rows are told apart best; the wider spread goes across.
        pair = sorted(numbers, key=pl.Series.n_unique, reverse=True)[:2]
        across, along = sorted(pair, key=_spread, reverse=True)
        chart.scatter((MARGIN, top, side - GAP // 2, middle), across, along)
    for box, column in zip(_rows((side + GAP // 2, top, WIDTH - MARGIN, middle), 3), numbers, strict=False):
        chart.histogram(box, column)
    for box, column in zip(_columns((MARGIN, middle + GAP, WIDTH - MARGIN, bottom), 3), texts, strict=False):
        chart.bars(box, column)
    return chart.png()


def _rows(box: Box, count: int) -> list[Box]:
    left, top, right, bottom = box
    step = (bottom - top + GAP) // count
    return [(left, top + place * step, right, top + (place + 1) * step - GAP) for place in range(count)]


def _columns(box: Box, count: int) -> list[Box]:
    left, top, right, bottom = box
    step = (right - left + GAP) // count
    return [(left + place * step, top, left + (place + 1) * step - GAP, bottom) for place in range(count)]


def _extent(values: pl.Series) -> tuple[float, float]:
    low, high = _number(values.min()), _number(values.max())
    return (low, high) if high > low else (low, low + 1)


def _spread(values: pl.Series) -> float:
    low, high = _extent(values)
    return high - low


def _number(value: Any) -> float:
    return 0.0 if value is None else float(value)


def _written(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= EXACT else f"{number:.4g}"


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"


def _font(size: int) -> Any:
    return ImageFont.load_default(size)
