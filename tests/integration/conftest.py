"""Fixtures for tests with programs: those in other languages, and `pillion` itself."""

import faulthandler
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.listening import Place
from tests.support import calling
from tests.support.issuers import Issuer
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
