"""One call through the SDK: progress on standard error, the result as JSON on standard output."""

import argparse
import asyncio
import sys

import pillion
from pillion import errors


async def call(target: str, tool: str, arguments: str, timeout: float | None) -> int:
    """Runs the tool and prints what comes of it. Answers the exit code."""
    async with pillion.connect(target) as host:
        try:
            async with host.start(tool, arguments.encode(), timeout=timeout) as running:
                async for report in running:
                    line = report.payload
                    print(line.get("message") if isinstance(line, dict) else line, file=sys.stderr)
                result = await running.raw()
                print("" if result.json is None else result.json.decode())
                return 1 if result.is_error else 0
        except errors.InvalidArguments as refused:
            print(
                refused,
                *(f"{issue.path or '/'}: {issue.message}" for issue in refused.issues),
                sep="\n",
                file=sys.stderr,
            )
        except errors.CallFailed as failed:
            again = " It may be tried again." if failed.retryable else ""
            print(f"{failed.kind.name}: {failed}{again}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Runs one tool.")
    parser.add_argument("target", help="the sidecar's callers' listener, such as unix:/run/callers.sock")
    parser.add_argument("tool")
    parser.add_argument("arguments", nargs="?", default="{}", help="a JSON object")
    parser.add_argument("--timeout", type=float, help="seconds")
    try:
        sys.exit(asyncio.run(call(**vars(parser.parse_args()))))
    except errors.ConnectionFailed as failed:
        sys.exit(str(failed))
