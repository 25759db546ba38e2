"""Pillion for Python: call tools through a sidecar, and write tools that a sidecar calls.

A caller::

    async with pillion.connect("unix:/run/pillion/callers.sock") as host:
        answer = await host.call("count_lines", {"path": "notes.txt"}, timeout=10)

A worker::

    @pillion.tool(effects=pillion.READ)
    async def count_lines(path: str, ctx: pillion.ToolContext) -> int:
        \"\"\"Counts the lines of a file.\"\"\"
        ...

    pillion.run_worker([count_lines], target="unix:/run/pillion/workers.sock", worker="files", token_file="token")

What can go wrong is in `pillion.errors`; `pillion.sync` is the caller without asyncio; `pillion.testing` calls a tool
without a sidecar; `pillion.bus`, `pillion.content` and `pillion.credentials` have the words of the bus, of what tools
return, and of what they are issued.
"""

from pillion import bus, content, credentials, errors
from pillion._artifacts import ArtifactMeta, ArtifactOrigin, ArtifactShape
from pillion._caller.artifacts import HostArtifacts
from pillion._caller.call import Call
from pillion._caller.host import CallOptions, EndedScope, Host, connect
from pillion._caller.listing import HostInfo, ToolAnnotations, ToolInfo, Tools
from pillion._caller.outcome import Paused, Progress, RegisteredTeardown, Result
from pillion._caller.questions import PeerError, Question
from pillion._facts import (
    CallerPrincipal,
    CancelReason,
    Effects,
    Identity,
    ParentAnchor,
    Registration,
    Secret,
    SideEffects,
    TeardownReason,
    TeardownScope,
    Trace,
)
from pillion._verbs import Artifacts, OpenArtifact
from pillion._wire.security import Tls
from pillion._worker.context import ToolContext
from pillion._worker.credentials import AuthorizationRequired, Credential, CredentialMode
from pillion._worker.pause import Pause, Resumed
from pillion._worker.run import run_worker
from pillion._worker.signals import Cancelled, ToolError, ToolResult
from pillion._worker.tool import Need, Placement, Tool, tool
from pillion._worker.worker import Worker

READ, IDEMPOTENT, UNSAFE = Effects.READ, Effects.IDEMPOTENT, Effects.UNSAFE

__all__ = (
    "IDEMPOTENT",
    "READ",
    "UNSAFE",
    "ArtifactMeta",
    "ArtifactOrigin",
    "ArtifactShape",
    "Artifacts",
    "AuthorizationRequired",
    "Call",
    "CallOptions",
    "CallerPrincipal",
    "CancelReason",
    "Cancelled",
    "Credential",
    "CredentialMode",
    "Effects",
    "EndedScope",
    "Host",
    "HostArtifacts",
    "HostInfo",
    "Identity",
    "Need",
    "OpenArtifact",
    "ParentAnchor",
    "Pause",
    "Paused",
    "PeerError",
    "Placement",
    "Progress",
    "Question",
    "RegisteredTeardown",
    "Registration",
    "Result",
    "Resumed",
    "Secret",
    "SideEffects",
    "TeardownReason",
    "TeardownScope",
    "Tls",
    "Tool",
    "ToolAnnotations",
    "ToolContext",
    "ToolError",
    "ToolInfo",
    "ToolResult",
    "Tools",
    "Trace",
    "Worker",
    "bus",
    "connect",
    "content",
    "credentials",
    "errors",
    "run_worker",
    "tool",
)
