"""Writes log lines by a thread of its own: who logs never waits for who reads the log."""

import logging
import os
import select
import threading
from collections import deque

_MOST_WAITING = 4 * 1024 * 1024
_PATIENCE = 1.0


class LogWriter(logging.Handler):
    """Writes to a descriptor what is logged, in order.

    At most 4 MiB wait to be written. Lines beyond that are lost and counted, and a line says how many once there is
    room again. At the end of the process it waits at most a second for what is left to be read.
    """

    def __init__(self, descriptor: int, encoding: str) -> None:
        super().__init__()
        self.lost = 0
        """How many lines were lost: there was no room, or they could not be written."""
        self._descriptor = descriptor
        self._encoding = encoding
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._undelivered = 0
        """Bytes that wait or are being written."""
        self._untold = 0
        """How many of the lost lines no line has told of."""
        self._failed = False
        """Whether the last line could not be written."""
        self._closed = False
        self._patience = _PATIENCE
        # No pipe that is full may keep the process from its end.
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queues a record's line."""
        try:
            line = self._line(record)
        except Exception:  # noqa: BLE001  # a mistake where it was logged; it is logging's to tell, and ends nothing
            self.handleError(record)
            return
        with self._changed:
            if self._closed or self._undelivered + len(line) > _MOST_WAITING:
                self.lost += 1
                self._untold += 1
                return
            self._lines.append(line)
            self._undelivered += len(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Waits until all lines are written, at most a second; if nobody reads them by then, never again."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._undelivered, self._patience):
                self._patience = 0.0

    def close(self) -> None:
        """Takes no more lines; those that wait are written if somebody reads them soon."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(self._patience)
        super().close()

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(self._encoding, "backslashreplace")

    def _run(self) -> None:
        while True:
            with self._changed:
                # What could not be written is told behind the next line, and not tried again and again.
                self._changed.wait_for(lambda: self._lines or self._closed or self._may_tell())
                if not self._lines and not self._may_tell():
                    return
                lines = list(self._lines)
                self._lines.clear()
                untold, self._untold = self._untold, 0
            loss = self._line(_loss(untold)) if untold else b""
            is_written = self._write(b"".join((*lines, loss)))
            with self._changed:
                self._failed = not is_written
                self._undelivered -= sum(map(len, lines))
                if self._failed:
                    self.lost += len(lines)
                    self._untold += untold + len(lines)
                self._changed.notify_all()

    def _may_tell(self) -> bool:
        return self._untold > 0 and not self._failed

    def _write(self, data: bytes) -> bool:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                # Whoever shares the pipe or terminal has made it so.
                select.select((), (self._descriptor,), ())
            except OSError:
                # Nobody reads any more, or the disk is full.
                return False
        return True


def _loss(count: int) -> logging.LogRecord:
    text = "%d log lines were lost: nobody read the log, or its disk is full"
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (count,), None)
