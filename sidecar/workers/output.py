"""What a worker process prints, as log lines."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping

from sidecar.telemetry.redaction import RedactedText

_log = logging.getLogger("pillion.worker")

_LINE_BYTES = 8_192
_READ_BYTES = 65_536
_LAST_READS = 16


class Output:
    """Reads one pipe of a worker to its end, and logs each line.

    Lines are bytes until they are logged, and bounded: a longer one is cut and says so, so nothing that a worker prints
    fills the memory or ends the reading. `facts` tells what the lines belong to, `redacted` takes secrets out of them.
    """

    def __init__(
        self,
        descriptor: int,
        level: int,
        facts: Callable[[], Mapping[str, str]],
        may_log: Callable[[], bool],
        redacted: RedactedText,
    ) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._level = level
        self._facts = facts
        self._may_log = may_log
        self._redacted = redacted
        self._line = bytearray()
        self._cut = 0
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def close(self) -> None:
        """Takes what was printed last, and ends the reading, if the worker has not."""
        for _ in range(_LAST_READS):
            if not self._read():
                break
        self._end()

    def _end(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            if self._line:
                self._emit()

    def _read(self) -> bool:
        """Takes what is there; False if that was nothing."""
        if self._descriptor < 0:
            return False
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._end()
            return False
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._add(part)
            self._emit()
        self._add(rest)
        return True

    def _add(self, part: bytes) -> None:
        room = _LINE_BYTES - len(self._line)
        self._line += part[:room]
        self._cut += max(len(part) - room, 0)

    def _emit(self) -> None:
        line, cut = bytes(self._line), self._cut
        self._line.clear()
        self._cut = 0
        text = line.decode(errors="replace").rstrip()
        if text:
            # Also of a line that is dropped: the next one may go on with what is secret.
            text = self._redacted.write(text)
        if not text or not self._may_log():
            return
        if cut:
            text += f"… (+{cut} bytes)"
        _log.log(self._level, "%s", text, extra=dict(self._facts()))
