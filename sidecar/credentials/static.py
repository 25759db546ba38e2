"""A credential written in the settings themselves. For tests alone."""

from collections.abc import Mapping

from sidecar.credentials.fields import Shape
from sidecar.credentials.port import Answer, Issued, Mode, Request
from sidecar.credentials.secret import Secret


class StaticProvider:
    """Issues the same values to everybody."""

    modes = frozenset(Mode)
    keeps_for = 0.0
    takes_user_token = False

    def __init__(self, shape: Shape, values: Mapping[str, Secret[str]]) -> None:
        """`values`: by field."""
        self._shape = shape
        self._values = values

    async def issue(self, request: Request) -> Answer:  # noqa: ARG002  # the same for everybody
        """The values."""
        fields = {name: value.reveal().encode() for name, value in self._values.items()}
        return Issued(self._shape.credential(fields))
