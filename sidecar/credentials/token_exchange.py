"""OAuth 2 token exchange (RFC 8693): a token for one service, for a token that the sidecar or the user has."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from sidecar.credentials.client_credentials import UNKNOWN_LIFE, issued_of, scope_of
from sidecar.credentials.port import Answer, CredentialRefused, Mode, Request
from sidecar.credentials.secret import Secret
from sidecar.credentials.token_endpoint import TokenEndpoint

_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_TOKEN_TYPE = "urn:ietf:params:oauth:token-type:"  # noqa: S105  # a name of the standard


class TokenExchangeProvider:
    """Exchanges a token: in machine mode one in a file, in user mode the one that the caller proved the user by."""

    keeps_for = UNKNOWN_LIFE

    def __init__(
        self,
        service: str,
        endpoint: TokenEndpoint,
        *,
        subject_token: Callable[[], Secret[str]] | None,
        subject_token_type: str = "access_token",  # noqa: S107  # a name of the standard
        scopes: Sequence[str] = (),
        parameters: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`subject_token`: reads the token of machine mode, each time; may block. `None`: user mode."""
        self.modes = frozenset((Mode.USER if subject_token is None else Mode.MACHINE,))
        self.takes_user_token = subject_token is None
        self._service = service
        self._endpoint = endpoint
        self._subject_token = subject_token
        self._subject_token_type = _TOKEN_TYPE + subject_token_type
        self._scopes = tuple(scopes)
        self._parameters = parameters or {}
        self._clock = clock

    async def issue(self, request: Request) -> Answer:
        """A new token."""
        if self._subject_token is not None:
            token = await asyncio.to_thread(self._subject_token)
        elif request.user_token is not None:
            token = request.user_token
        else:
            raise CredentialRefused(
                f"A credential for {self._service} is made of the user's own token, and the caller showed none; "
                "call with a token of the user."
            )
        form = {
            **self._parameters,
            "grant_type": _GRANT,
            "subject_token": token.reveal(),
            "subject_token_type": self._subject_token_type,
        }
        form |= scope_of(request.need.scopes or self._scopes)
        return issued_of(await self._endpoint.ask(form), self._clock())
