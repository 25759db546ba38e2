"""Credentials from the KV store, version 2, of Vault or OpenBao, over its HTTP API."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from sidecar.credentials.fields import Shape
from sidecar.credentials.http import Http
from sidecar.credentials.port import Answer, CredentialRefused, Issued, Mode, ProviderDown, Request
from sidecar.credentials.secret import Secret

_REFUSED = frozenset((HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.BAD_REQUEST))


@dataclass(frozen=True, slots=True)
class VaultSecret:
    """Where a secret is."""

    address: str
    """Of the server: `https://host:8200`."""
    mount: str
    """Of the KV store, version 2."""
    path: str
    """Of the secret in it."""
    namespace: str | None = None

    @property
    def url(self) -> str:
        """Of its newest version."""
        return f"{self.address.rstrip('/')}/v1/{quote(self.mount.strip('/'))}/data/{quote(self.path.strip('/'))}"


class VaultProvider:
    """Issues the newest version of one secret, to all tenants and subjects alike."""

    modes = frozenset((Mode.MACHINE,))
    takes_user_token = False

    def __init__(
        self,
        shape: Shape,
        secret: VaultSecret,
        http: Http,
        token: Callable[[], Secret[str]],
        *,
        fields: Mapping[str, str] | None = None,
        keeps_for: float = 60.0,
    ) -> None:
        """`token`: reads the one to show to the server; may block. `keeps_for`: how long a version may be remembered.

        `fields`: by field, its name in the secret, where that is not the field's own.
        """
        self.keeps_for = keeps_for
        self._shape = shape
        self._secret = secret
        self._http = http
        self._token = token
        self._fields = fields or {}

    async def issue(self, request: Request) -> Answer:  # noqa: ARG002  # the same for everybody
        """The newest version."""
        whom = f"The vault of {self._shape.service}"
        headers = {"x-vault-token": (await asyncio.to_thread(self._token)).reveal(), "x-vault-request": "true"}
        if self._secret.namespace is not None:
            headers["x-vault-namespace"] = self._secret.namespace
        reply = await self._http.get(whom, self._secret.url, headers)
        if reply.status == HTTPStatus.NOT_FOUND:
            raise CredentialRefused(f"{whom} has no such secret, or its newest version is deleted; write one there.")
        if reply.status in _REFUSED:
            raise CredentialRefused(
                f"{whom} refused (status {reply.status}); give the sidecar a token that may read the secret."
            )
        answer = reply.json()
        outer = answer.get("data") if isinstance(answer, dict) else None
        data = outer.get("data") if isinstance(outer, dict) else None
        if not reply.is_success or not isinstance(outer, dict) or not isinstance(data, dict):
            raise ProviderDown(f"{whom} answered with what is no secret of KV version 2; look at its mount.")
        return Issued(self._shape.credential(self._picked(data)), _deletion(outer.get("metadata")))

    def _picked(self, data: Mapping[str, Any]) -> dict[str, bytes]:
        texts = {name: value for name, value in data.items() if isinstance(value, str)}
        names = self._fields or {name: name for name in self._shape.wanted or texts}
        return {field: texts[name].encode() for field, name in names.items() if name in texts}


def _deletion(metadata: Any) -> float | None:
    """When this version deletes itself, in seconds of the wall clock."""
    when = metadata.get("deletion_time") if isinstance(metadata, dict) else None
    if not isinstance(when, str) or not when:
        return None
    try:
        # To the microsecond, where there is more.
        head, _, fraction = when.rstrip("Z").partition(".")
        return datetime.fromisoformat(f"{head}.{fraction[:6] or '0'}+00:00").timestamp()
    except ValueError:
        return None
