"""OAuth 2 client credentials: tokens of the sidecar's own."""

import time
from collections.abc import Callable, Mapping, Sequence

from sidecar.credentials.port import Answer, Bearer, Issued, Mode, Request
from sidecar.credentials.token_endpoint import TokenEndpoint, Tokens

UNKNOWN_LIFE = 300.0
"""How long a token is remembered that does not say how long it works."""


class ClientCredentialsProvider:
    """Issues tokens by the grant `client_credentials`, one for each tenant, subject and set of scopes."""

    modes = frozenset((Mode.MACHINE,))
    keeps_for = UNKNOWN_LIFE
    takes_user_token = False

    def __init__(
        self,
        endpoint: TokenEndpoint,
        *,
        scopes: Sequence[str] = (),
        parameters: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`scopes`: where a need names none. `parameters`: further ones, such as an audience."""
        self._endpoint = endpoint
        self._scopes = tuple(scopes)
        self._parameters = parameters or {}
        self._clock = clock

    async def issue(self, request: Request) -> Answer:
        """A new token."""
        form = {**self._parameters, "grant_type": "client_credentials"}
        form |= scope_of(request.need.scopes or self._scopes)
        return issued_of(await self._endpoint.ask(form), self._clock())


def scope_of(scopes: Sequence[str]) -> dict[str, str]:
    """Scopes as a form has them; nothing where there are none."""
    return {"scope": " ".join(scopes)} if scopes else {}


def issued_of(tokens: Tokens, now: float) -> Issued:
    """The credential that tokens make."""
    expires_at = None if tokens.expires_in is None else now + tokens.expires_in
    return Issued(Bearer(tokens.access_token), expires_at)
