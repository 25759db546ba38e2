"""A credential written in the settings themselves. For tests alone."""

from collections.abc import Mapping

from sidecar.credentials.fields import credential_of
from sidecar.credentials.port import Answer, Issued, Kind, Mode, Request
from sidecar.credentials.secret import Secret


class StaticProvider:
    """Issues the same values to everybody."""

    modes = frozenset(Mode)
    keeps_for = 0.0
    takes_user_token = False

    def __init__(
        self, service: str, kind: Kind, values: Mapping[str, Secret[str]], *, header: str | None = None
    ) -> None:
        """`values`: by field."""
        self._service = service
        self._kind = kind
        self._values = values
        self._header = header

    async def issue(self, request: Request) -> Answer:  # noqa: ARG002  # the same for everybody
        """The values."""
        fields = {name: value.reveal().encode() for name, value in self._values.items()}
        return Issued(credential_of(self._service, self._kind, fields, header=self._header))

    async def aclose(self) -> None:
        """Nothing is held."""
