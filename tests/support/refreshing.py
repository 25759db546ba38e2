"""A process that asks for Ann's token once, stops where it is told to, and says what it got.

It is run as a program: the directory, the provider's address, the time, and the step to stop at, if any.
"""

import asyncio
import sys
import threading
from pathlib import Path

from sidecar.credentials.facade import Credentials
from sidecar.credentials.http import Http
from sidecar.credentials.logins import Login, LoginFiles
from sidecar.credentials.port import CredentialFailed, Issued
from tests.conformance.credentials.case import GRANT, value_of
from tests.conformance.credentials.harnesses import KEY, SERVICE, AuthorizationCode
from tests.support.people import ANN, Clock

STEPS = ("before the intent", "torn intent", "intent", "torn token", "token")
"""Where it can stop: before and after each thing that lasts."""


def _stop() -> None:
    """Says so, and waits to be killed."""
    print("stopped", flush=True)
    threading.Event().wait()


class StoppingFiles(LoginFiles):
    """Stops at a step."""

    step = ""

    def change(self, login: Login, to: Login) -> Login | None:
        what = "token" if to.tries == 0 else "intent"
        if self.step == f"before the {what}":
            _stop()
        if self.step == f"torn {what}":
            Path.replace = lambda *_: _stop()  # type: ignore[assignment,method-assign]  # what is written is not named
        changed = super().change(login, to)
        if self.step == what:
            _stop()
        return changed


class Harness(AuthorizationCode):
    """With a provider that is elsewhere."""

    step = ""
    at = ""

    @property
    def url(self) -> str:
        return self.at

    def store(self) -> LoginFiles:
        store = StoppingFiles(self.directory / "logins", KEY)
        store.step = self.step
        return store


async def main() -> None:
    """Asks once."""
    directory, url, now, *step = sys.argv[1:]
    clock = Clock()
    clock.now = float(now)
    harness = Harness(Path(directory), clock)
    harness.at, harness.step, harness.http = url, "".join(step), Http()
    door = Credentials({SERVICE: harness.provider()}, resources=(harness.http,), clock=clock)
    try:
        answer = await door.resolve(ANN.scope, ANN.principal, harness.need, grant=GRANT)
    except CredentialFailed as failed:
        print("failed", failed, flush=True)
    else:
        print(f"issued {value_of(answer)}" if isinstance(answer, Issued) else "authorize", flush=True)
    await door.aclose()


if __name__ == "__main__":
    asyncio.run(main())
