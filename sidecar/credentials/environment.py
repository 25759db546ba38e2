"""Credentials from environment variables of the sidecar."""

from collections.abc import Mapping

from sidecar.credentials.fields import Shape
from sidecar.credentials.port import Answer, CredentialRefused, Issued, Mode, Request


class EnvironmentProvider:
    """Issues what variables hold, to all tenants and subjects alike. They are read each time."""

    modes = frozenset((Mode.MACHINE,))
    keeps_for = 0.0
    takes_user_token = False

    def __init__(self, shape: Shape, variables: Mapping[str, str], environment: Mapping[str, str]) -> None:
        """`variables`: by field, the name of the variable that holds it."""
        self._shape = shape
        self._variables = variables
        self._environment = environment

    async def issue(self, request: Request) -> Answer:  # noqa: ARG002  # the same for everybody
        """What the variables hold now."""
        unset = [name for name in self._variables.values() if not self._environment.get(name)]
        if unset:
            raise CredentialRefused(
                f"The credential for {self._shape.service} is not set: start the sidecar with {' and '.join(unset)}."
            )
        fields = {
            field: self._environment[name].encode(errors="surrogateescape") for field, name in self._variables.items()
        }
        return Issued(self._shape.credential(fields))
