"""A stand-in for Vault: the part of its HTTP API that reads KV version 2, as its documentation has it."""

import json
from collections.abc import Callable

from tests.support.http_stand_in import Answered, Asked, HttpStandIn

TOKEN = "hvs.canary-vault-token"


class VaultStandIn(HttpStandIn):
    """Secrets by mount and path, each with its versions."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.asked = 0
        self.fault: Callable[[Asked], Answered | None] | None = None
        self._secrets: dict[str, list[tuple[dict[str, str] | None, str]]] = {}

    def write(self, path: str, data: dict[str, str] | None, *, deletion_time: str = "") -> None:
        """Writes a new version of `mount/path`; `None` deletes the newest one."""
        versions = self._secrets.setdefault(path, [])
        if data is None:
            versions[-1] = (None, "2026-01-01T00:00:00.123456789Z")
        else:
            versions.append((data, deletion_time))

    async def _answer(self, asked: Asked) -> Answered:
        self.asked += 1
        if self.fault is not None and (answered := self.fault(asked)) is not None:
            return answered
        if asked.headers.get("x-vault-token") != TOKEN:
            return _json(403, {"errors": ["permission denied"]})
        _, version, mount, verb, *path = asked.path.split("/")
        versions = self._secrets.get("/".join((mount, *path)))
        if (asked.method, version, verb) != ("GET", "v1", "data") or not versions:
            return _json(404, {"errors": []})
        data, deletion_time = versions[-1]
        metadata = {"version": len(versions), "destroyed": False, "deletion_time": deletion_time}
        # A deleted version is not found, and is answered with what is known of it all the same.
        return _json(200 if data is not None else 404, {"data": {"data": data, "metadata": metadata}})


def _json(status: int, answer: object) -> Answered:
    return Answered(status, json.dumps(answer).encode())
