"""Authorisations that a person is asked for, between the address they are sent to and the one they come back to."""

import base64
import binascii
import hashlib
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from sidecar.credentials.port import NOT_BEGUN, CredentialRefused, Mode, Need, Request
from sidecar.credentials.sealing import Key, Sealer, SealRefused
from sidecar.credentials.secret import Secret
from sidecar.scope import Owner, Principal

_PURPOSE = "consent"
_LIFE = 900.0
_MOST_USED = 4_096


class Begun(NamedTuple):
    """One authorisation."""

    need: Need
    verifier: Secret[str]
    """Of PKCE: proves that who redeems the code is who began."""
    redirect: str
    """Where the person comes back to."""


class Consents:
    """Begins authorisations and takes them up again, each once, by the principal and for the owner they were begun by.

    Nothing is stored: an authorisation is in its own `state`, sealed, so that any number can be open, and a restart of
    the sidecar ends none.
    """

    def __init__(self, key: Key, *, clock: Callable[[], float] = time.time, life: float = _LIFE) -> None:
        self._sealer = Sealer(key, _PURPOSE)
        self._clock = clock
        self._life = life
        self._used: OrderedDict[bytes, None] = OrderedDict()

    def begin(self, request: Request, redirect: str) -> tuple[str, str]:
        """A new authorisation: its `state`, and its challenge of PKCE by S256."""
        verifier = secrets.token_urlsafe(48)
        need = request.need
        content = json.dumps(
            {
                "owner": list(request.scope.owner),
                "principal": request.principal.name,
                "service": need.service,
                "scopes": list(need.scopes),
                "mode": need.mode,
                "verifier": verifier,
                "redirect": redirect,
                "until": self._clock() + self._life,
            }
        )
        state = base64.urlsafe_b64encode(self._sealer.seal(content.encode())).decode().rstrip("=")
        digest = hashlib.sha256(verifier.encode()).digest()
        return state, base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def take(self, state: str, service: str, owner: Owner, principal: Principal) -> Begun:
        """The authorisation with this `state`. It is used up.

        :raises CredentialRefused: if it is forged, another's, used, or too old. Which of them is not told.
        """
        try:
            sealed = base64.b64decode(state + "=" * (-len(state) % 4), altchars=b"-_", validate=True)
            value = json.loads(self._sealer.open(sealed, "state"))
        except (ValueError, binascii.Error, SealRefused):
            raise CredentialRefused(NOT_BEGUN) from None
        digest = hashlib.sha256(sealed).digest()
        asked = [list(owner), principal.name, service]
        if (
            [value["owner"], value["principal"], value["service"]] != asked
            or value["until"] <= self._clock()
            or digest in self._used
        ):
            raise CredentialRefused(NOT_BEGUN)
        # The provider takes a code once; that is what counts after a restart, and beyond what is remembered here.
        self._used[digest] = None
        while len(self._used) > _MOST_USED:
            self._used.popitem(last=False)
        need = Need(service, tuple(value["scopes"]), Mode(value["mode"]))
        return Begun(need, Secret(value["verifier"]), value["redirect"])
