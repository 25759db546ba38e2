"""`pillion call`."""

import argparse
import asyncio
import os
import signal
import sys

import pillion
from pillion import errors
from sidecar.cli.arguments import BadArguments, arguments_of
from sidecar.cli.connection import connected
from sidecar.cli.console import say, tell
from sidecar.cli.elicitation import ELICITATION, Elicitation
from sidecar.cli.main import USAGE
from sidecar.cli.progress import ProgressLine
from sidecar.cli.reach import Unreachable, reach_of
from sidecar.config import ConfigRefused

TOOL_ERROR = 1
"""The exit code where the tool returned, and says that its result is an error."""
FIRST_FAILURE = 10
"""A failure's exit code is this and the number of its kind in the protocol."""
INTERRUPTED = 130
"""The exit code where the person ended the call, as a shell has it for SIGINT."""


def run(options: argparse.Namespace) -> int:
    """Runs one call; answers the exit code."""
    try:
        return asyncio.run(_call(options))
    except (BadArguments, ConfigRefused, Unreachable) as error:
        tell(str(error))
        return USAGE
    except errors.JsonRefused as error:
        tell(f"The arguments are not JSON as it is taken here: {error}")
        return USAGE


async def _call(options: argparse.Namespace) -> int:
    reach = reach_of(options)
    progress = ProgressLine(options.tool, quiet=options.quiet)
    people = Elicitation(progress.clear)
    async with connected(reach, {ELICITATION: people.answer}) as host:
        identity = None
        if options.tenant is not None or options.principal is not None:
            identity = pillion.Identity(tenant=options.tenant, principal=options.principal)
        known = (await host.tools(identity)).by_name.get(options.tool) if options.arg else None
        arguments = arguments_of(options.arg, options.json, known.input_schema if known is not None else None)
        running = host.start(
            options.tool,
            arguments,
            timeout=options.timeout,
            idle_timeout=options.idle_timeout,
            idempotency_key=options.key,
            session_id=options.session,
            run_id=options.run,
            identity=identity,
        )
        interrupts = _Interrupts(running, progress)
        try:
            async with running:
                async for report in running:
                    progress.show(report.payload)
                result = await running.raw()
        except errors.Unreachable:
            raise Unreachable(reach.target) from None
        except errors.CallFailed as failed:
            progress.clear()
            return _failed(failed, interrupted=interrupts.count > 0)
        except errors.CallPaused as paused:
            progress.clear()
            tell(f"The tool waits for an answer: {paused}")
            return FIRST_FAILURE
        finally:
            interrupts.close()
    progress.clear()
    if result.json is not None:
        say(result.json.decode())
    return TOOL_ERROR if result.is_error else 0


class _Interrupts:
    """The first Ctrl-C cancels the call, the second leaves."""

    def __init__(self, call: pillion.Call, progress: ProgressLine) -> None:
        self.count = 0
        self._call = call
        self._progress = progress
        self._cancelling: asyncio.Task[None] | None = None
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupted)

    def close(self) -> None:
        """Gives Ctrl-C back."""
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    def _interrupted(self) -> None:
        self.count += 1
        if not self._progress.clear() and sys.stderr.isatty():
            tell("")  # Below the ^C that the terminal has written.
        if self.count > 1:
            # The call is cancelled by the loss of its stream.
            os._exit(INTERRUPTED)
        tell("Cancelling; Ctrl-C again leaves.")
        self._cancelling = asyncio.ensure_future(self._call.cancel())


def _failed(failed: errors.CallFailed, *, interrupted: bool) -> int:
    tell(f"{failed.kind.name}: {failed.message}")
    for issue in failed.issues:
        tell(f"  {issue.path or '/'}: {issue.message}")
    if failed.retryable:
        wait = f" in {failed.retry_after:g} s" if failed.retry_after is not None else ""
        tell(f"It may be tried again{wait}.")
    return INTERRUPTED if interrupted else FIRST_FAILURE + failed.kind.value
