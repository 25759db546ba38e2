"""`pillion call`."""

import argparse
import asyncio
import json
import os
import secrets
import signal
import sys

import pillion
from pillion import errors
from sidecar.cli.arguments import BadArguments, arguments_of
from sidecar.cli.attachments import Attachments, FileRefused
from sidecar.cli.connection import connected
from sidecar.cli.console import say, tell
from sidecar.cli.elicitation import ELICITATION, Elicitation
from sidecar.cli.main import USAGE
from sidecar.cli.progress import ProgressLine
from sidecar.cli.reach import Unreachable, reach_of
from sidecar.cli.sizes import size_text
from sidecar.config import ConfigRefused

TOOL_ERROR = 1
"""The exit code where the tool returned, and says that its result is an error."""
PAUSED = 3
"""The exit code where the call waits for an answer from outside."""
FIRST_FAILURE = 10
"""A failure's exit code is this and the number of its kind in the protocol."""
INTERRUPTED = 130
"""The exit code where the person ended the call, as a shell has it for SIGINT."""


def run(options: argparse.Namespace) -> int:
    """Runs one call; answers the exit code."""
    try:
        return asyncio.run(_call(options))
    except (BadArguments, ConfigRefused, FileRefused, Unreachable) as error:
        tell(str(error))
        return USAGE
    except errors.JsonRefused as error:
        tell(f"The arguments are not JSON as it is taken here: {error}")
        return USAGE
    except errors.RequestRefused as error:
        tell(error.message)
        return USAGE


async def _call(options: argparse.Namespace) -> int:
    if options.detach and options.save is not None:
        raise BadArguments("--save needs the result, which a call has later that is left running; leave one out.")
    reach = reach_of(options)
    progress = ProgressLine(options.tool, quiet=options.quiet)
    people = Elicitation(progress.clear)
    async with connected(reach, {ELICITATION: people.answer}) as host:
        identity = None
        if options.tenant is not None or options.principal is not None:
            identity = pillion.Identity(tenant=options.tenant, principal=options.principal)
        place = {"session_id": options.session, "run_id": options.run}
        if options.artifact and options.session is None and options.run is None:
            # The files are there before the call, so the call has to name where.
            place["run_id"] = f"run_{secrets.token_hex(8)}"
        files = Attachments(host.artifacts.within(identity=identity, **place))
        arguments = await _arguments(options, host, identity, files)
        running = host.start(
            options.tool,
            arguments,
            timeout=options.timeout,
            idle_timeout=options.idle_timeout,
            idempotency_key=options.key,
            identity=identity,
            detachable=options.detach,
            **place,
        )
        if options.detach:
            return await detached(running, options.tool, reach.target)
        result = await ended(running, progress, reach.target)
        if isinstance(result, int):
            return result
        if options.save is not None:
            kept = host.artifacts.within(identity=identity, execution_id=running.execution_id, **place)
            await files.save(kept, result, options.save)
        elif result.placed is not None:
            _tell_where(result.placed, running.execution_id, **place)
    if result.json is not None:
        say(result.json.decode())
    return TOOL_ERROR if result.is_error else 0


async def ended(running: pillion.Call, progress: ProgressLine, target: str) -> pillion.Result | int:
    """The result of a call, which is begun here; or the exit code, once it was told why there is none.

    :raises Unreachable: if the sidecar is not there.
    """
    interrupts = _Interrupts(running, progress)
    try:
        async with running:
            async for report in running:
                progress.show(report.payload)
            return await running.raw()
    except errors.Unreachable:
        raise Unreachable(target) from None
    except errors.CallFailed as failed:
        progress.clear()
        return tell_failed(failed, interrupted=interrupts.count > 0)
    except errors.CallPaused as pause:
        progress.clear()
        return tell_paused(pause.paused)
    finally:
        interrupts.close()
        progress.clear()


async def detached(running: pillion.Call, tool: str, target: str) -> int:
    """Lets go of a call, which is begun here; prints what is needed to follow it, and to cancel it.

    :raises Unreachable: if the sidecar is not there.
    """
    try:
        async with running:
            ticket = await running.detach()
            say(json.dumps({"ticket": ticket, "execution_id": running.execution_id, "tool": tool}))
    except errors.Unreachable:
        raise Unreachable(target) from None
    except errors.CallFailed as failed:
        return tell_failed(failed, interrupted=False)
    return 0


async def _arguments(
    options: argparse.Namespace, host: pillion.Host, identity: pillion.Identity | None, files: Attachments
) -> bytes:
    """The arguments, of which some may be files."""
    if options.json is not None and options.artifact:
        raise BadArguments("Give --json alone, or --arg and --artifact.")
    known = None
    if options.arg or options.artifact:
        known = (await host.tools(identity)).by_name.get(options.tool)
    if known is None:
        return arguments_of(options.arg, options.json, None)
    references = await files.put(options.artifact, options.tool, known.wants)
    return arguments_of([*options.arg, *references], options.json, known.input_schema)


def _tell_where(
    placed: pillion.ArtifactMeta, execution_id: str | None, *, session_id: str | None, run_id: str | None
) -> None:
    """Tells of a result that was too large to be carried."""
    flag, place = "--execution", execution_id
    if session_id is not None or run_id is not None:
        flag, place = ("--session", session_id) if session_id is not None else ("--run", run_id)
    tell(
        f"The result is an artifact of {size_text(placed.size)}; write it to a file by --save, or get it by "
        f"`pillion artifacts get {placed.reference} {flag} {place}`."
    )


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
        if not self._progress.clear() and sys.stderr is not None and sys.stderr.isatty():
            tell("")  # Below the ^C that the terminal has written.
        if self.count > 1:
            # The call is cancelled by the loss of its stream.
            os._exit(INTERRUPTED)
        tell("Cancelling; Ctrl-C again leaves.")
        self._cancelling = asyncio.ensure_future(self._call.cancel())


def tell_paused(paused: pillion.Paused) -> int:
    """Tells a person what is asked, and whoever reads the output the ticket."""
    tell(f"The tool waits for an answer ({paused.kind}): {paused.message}")
    tell("Give it by `pillion resume --answer JSON`, with what was written to stdout as its stdin.")
    told = {"kind": paused.kind, "message": paused.message, "schema": paused.schema}
    ticket = paused.ticket.reveal() if paused.ticket is not None else None
    say(json.dumps({**told, "ticket": ticket}, ensure_ascii=False))
    return PAUSED


def tell_failed(failed: errors.CallFailed, *, interrupted: bool) -> int:
    """Tells of a call that did not return; answers the exit code."""
    tell(f"{failed.kind.name}: {failed.message}")
    for issue in failed.issues:
        tell(f"  {issue.path or '/'}: {issue.message}")
    if failed.retryable:
        wait = f" in {failed.retry_after:g} s" if failed.retry_after is not None else ""
        tell(f"It may be tried again{wait}.")
    return INTERRUPTED if interrupted else FIRST_FAILURE + failed.kind.value
