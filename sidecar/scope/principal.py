"""Who a connection proves its caller to be."""

from typing import NamedTuple


class Principal(NamedTuple):
    """A caller principal. It authorises; it comes from the connection, never from a message."""

    name: str
    """`local:<uid>`, say."""
    authenticated: bool
    """Whether an authenticator vouches for the name; a tool sees only such a one."""

    @property
    def is_local(self) -> bool:
        """Whether it is a user of this machine, by its socket."""
        return self.authenticated and self.name.startswith(_LOCAL)


_LOCAL = "local:"


def local_principal(uid: int) -> Principal:
    """The principal of who may open this user's socket."""
    return Principal(f"{_LOCAL}{uid}", authenticated=True)
