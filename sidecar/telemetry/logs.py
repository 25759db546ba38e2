"""How log lines look: one record a line, bounded, as text for people or JSON for machines."""

import io
import json
import logging
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, TextIO

from sidecar.telemetry.log_writer import LogWriter

Format = Literal["json", "text"]
Level = Literal["debug", "info", "warning", "error"]

_MESSAGE = 8_192
_SHORT = 1_024
_EXCEPTION_HEAD = 2_048
_EXCEPTION_TAIL = 14_336
_LINE = 65_536
_FACTS = ("worker", "instance", "execution_id")
_FACT = 256
_FIELDS = 32
_OURS = ("sidecar", "pillion")
_COLOURS = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31;1m"}
_PLAIN = "\x1b[0m"

# What moves a cursor, colours, or begins a line: a worker's line is data, and must not pass for one of another's.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}
_CONTROLS |= {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}

_Exception = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def set_up(stream: TextIO | None, form: Format | None, level: Level) -> None:
    """Sends all that is logged to a stream: the sidecar's and its workers' from this level on, of libraries warnings.

    Without a format it is text on a terminal and JSON elsewhere. Colours come on a terminal alone, and none where
    `NO_COLOR` is set or the terminal is a dumb one. A stream with a descriptor is written to by a thread, so that
    nothing waits where nobody reads it. Without a stream, as where it was closed before the start, nothing is logged.
    """
    terminal = stream is not None and stream.isatty()
    if (form or ("text" if terminal else "json")) == "json":
        formatter: logging.Formatter = JsonLines()
    else:
        formatter = TextLines(
            colours=terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
        )
    handler = _handler_for(stream)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=(handler,), level=logging.WARNING, force=True)
    for name in _OURS:
        logging.getLogger(name).setLevel(level.upper())
    # A peer that leaves while it is written to is ordinary, and decided elsewhere.
    logging.getLogger("grpc._cython.cygrpc").setLevel(logging.CRITICAL)


@contextmanager
def redacting(redact: Callable[[str], str]) -> Iterator[None]:
    """Takes out of all that is logged inside the block what `redact` takes out, before anything is cut short."""
    formatters = [handler.formatter for handler in logging.getLogger().handlers]
    ours = [formatter for formatter in formatters if isinstance(formatter, Lines)]
    for formatter in ours:
        formatter.redact = redact
    try:
        yield
    finally:
        for formatter in ours:
            formatter.redact = str


def flush() -> None:
    """Waits until what was logged is written, at most a second."""
    for writer in _writers():
        writer.flush()


def lost_lines() -> int:
    """How many lines were lost since the start: nobody read the log, or it could not be written."""
    return sum(writer.lost for writer in _writers())


def _writers() -> Iterator[LogWriter]:
    return (handler for handler in logging.getLogger().handlers if isinstance(handler, LogWriter))


def _handler_for(stream: TextIO | None) -> logging.Handler:
    if stream is None:
        return logging.NullHandler()
    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:
        return logging.StreamHandler(stream)
    stream.flush()
    return LogWriter(descriptor, stream.encoding)


class Lines(logging.Formatter):
    """What both forms have in common: the parts of a record, redacted and then bounded."""

    redact: Callable[[str], str] = str
    """Takes secrets out of a text."""

    def message_of(self, record: logging.LogRecord, most: int) -> str:
        """What happened, in at most so many characters."""
        return _bounded(self.redact(record.getMessage()), most)

    def facts_of(self, record: logging.LogRecord) -> Iterator[tuple[str, str]]:
        """What the record belongs to, as far as it says."""
        for name in _FACTS:
            value = getattr(record, name, None)
            if value is not None:
                yield name, _bounded(self.redact(str(value)), _FACT)

    def fields_of(self, record: logging.LogRecord) -> dict[str, str]:
        """Further fields, few and short."""
        fields = getattr(record, "fields", None)
        if not isinstance(fields, Mapping):
            return {}
        return {
            _bounded(self.redact(str(name)), _FACT): _bounded(self.redact(str(value)), _FACT)
            for name, value in list(fields.items())[:_FIELDS]
        }

    def exception_of(self, error: _Exception) -> str:
        """The traceback, without its middle where it is long: how it began and where it ended say most."""
        text = self.redact("".join(traceback.format_exception(*error)).rstrip())
        surplus = len(text) - _EXCEPTION_HEAD - _EXCEPTION_TAIL
        if surplus > 0:
            text = f"{text[:_EXCEPTION_HEAD]}\n… ({surplus:,} characters) …\n{text[-_EXCEPTION_TAIL:]}"
        return _bounded(text, len(text))


class JsonLines(Lines):
    """One JSON object a record, in ASCII and at most 64 KiB.

    It has `time`, `level`, `logger` and `message`; `worker`, `instance`, `execution_id` and `fields` where the record
    has them; and `exception`, the traceback as one text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, Any] = {
            "time": _time(record).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message_of(record, _MESSAGE),
            **dict(self.facts_of(record)),
        }
        fields = self.fields_of(record)
        if fields:
            line["fields"] = fields
        if record.exc_info:
            line["exception"] = self.exception_of(record.exc_info)
        text = json.dumps(line, separators=(",", ":"))
        if len(text) > _LINE:
            # Only what is all escapes grows so far; what it belongs to is kept.
            line.pop("fields", None)
            line["message"] = self.message_of(record, _SHORT)
            if "exception" in line:
                line["exception"] = line["exception"][-_SHORT:]
            text = json.dumps(line, separators=(",", ":"))
        return text


class TextLines(Lines):
    """One line a record, with `name=value` for what it belongs to; a traceback follows, indented.

    Control characters are written as escapes, so that a line begins where a record does.
    """

    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        level = record.levelname.lower()
        colour = _COLOURS.get(level, "") if self._colours else ""
        parts = [
            _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            f"{colour}{level:<7}{_PLAIN}" if colour else f"{level:<7}",
            f"{record.name}: {_visible(self.message_of(record, _MESSAGE))}",
            *(f"{name}={_visible(value)}" for name, value in self.facts_of(record)),
            *(f"{_visible(name)}={_visible(value)}" for name, value in self.fields_of(record).items()),
        ]
        lines = [" ".join(parts)]
        if record.exc_info:
            lines += [f"    {_visible(line)}" for line in self.exception_of(record.exc_info).splitlines()]
        return "\n".join(line[:_LINE] for line in lines)


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _bounded(text: str, most: int) -> str:
    """A text of at most so many characters, and a word on what is missing. Fit to be encoded."""
    if len(text) > most:
        text = f"{text[:most]}… (+{len(text) - most:,} characters)"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _visible(text: str) -> str:
    return text.translate(_CONTROLS)
