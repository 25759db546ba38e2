"""Fixtures for tests with programs: those in other languages, and `pillion` itself."""

import faulthandler
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.listening import Place
from tests.support import SocketHost, calling
from tests.support.artifacts import Artifacts
from tests.support.issuers import Issuer
from tests.support.issuing import set_variables
from tests.support.oauth_stand_in import OAuthStandIn
from tests.support.programs import Program, build_examples, missing_toolchains

Run = Callable[..., Program]


@pytest.fixture(scope="session")
def examples(request: pytest.FixtureRequest) -> None:
    """The examples in Go, Rust and TypeScript, built. CI has their toolchains; elsewhere a missing one skips."""
    if missing := missing_toolchains():
        if os.environ.get("CI"):
            pytest.fail(f"CI has no {' and no '.join(missing)}")
        pytest.skip(f"there is no {' and no '.join(missing)} on PATH")
    # The first time it takes minutes: nothing hangs, and it is good to see what goes on.
    faulthandler.cancel_dump_traceback_later()
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        build_examples()


@pytest.fixture
def run(examples: None) -> Iterator[Run]:
    """Starts programs; kills those that still run when the test ends."""
    programs: list[Program] = []

    def start(*command: str, **environment: str) -> Program:
        programs.append(Program(*command, **environment))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[calling.Program]:
    """The program `pillion` with a sidecar that serves, and its worker attached."""
    started = calling.Program(tmp_path_factory.mktemp("calling"))
    with started.open("serve", "--config", str(started.config)) as sidecar:
        assert started.run("wait-ready", "counter")[0] == 0
        yield started
        sidecar.send_signal(signal.SIGTERM)
        sidecar.communicate(timeout=30)
        assert sidecar.returncode == 0


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Where a sidecar has its files, and certificates to show it."""
    return Place(tmp_path)


@pytest.fixture
def issuer() -> Issuer:
    """An issuer of tokens with one key, of the usual kind."""
    issuer = Issuer()
    issuer.add("one")
    return issuer


@pytest.fixture
async def artifacts(host: SocketHost) -> AsyncIterator[Artifacts]:
    """The service of artifacts, as callers have it."""
    async with Artifacts(host.callers_at) as opened:
        yield opened


@pytest.fixture
async def for_workers(host: SocketHost) -> AsyncIterator[Artifacts]:
    """The same as workers have it."""
    async with Artifacts(host.workers_at) as opened:
        yield opened


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that sections of credentials name, for a sidecar in this process."""
    set_variables(monkeypatch)


@pytest.fixture
async def source(transport: str) -> AsyncIterator[OAuthStandIn]:
    """A provider of OAuth 2 tokens that stands in for a real one."""
    async with OAuthStandIn() as standing_in:
        yield standing_in
