"""Fixtures for tests with programs in other languages."""

import faulthandler
import os
from collections.abc import Callable, Iterator

import pytest

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
