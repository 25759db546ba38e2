"""What a tool can ask of others: its caller, and other tools."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pillion import _json
from pillion._caller.outcome import Outcome, read_outcome, value_of
from pillion._facts import set_seconds
from pillion._gen.pillion.v1.outbound_pb2 import CallerAsk, OutboundRequest, ToolsCall, ToolsHas
from pillion._worker.port import Port


@dataclass(frozen=True, slots=True)
class Elicited:
    """What a person answered."""

    action: str
    """`accept`, `decline` or `cancel`. All are answers."""
    content: Any
    """What was filled in; `None` unless accepted."""


class Caller:
    """The caller of this call, and through it a person or a model."""

    def __init__(self, port: Port, methods: frozenset[str] | None) -> None:
        self._port = port
        self.methods = methods
        """What it can be asked; empty where it answers nothing, `None` where there is no way back to it."""

    def can(self, method: str) -> bool:
        """Whether it can be asked this."""
        return self.methods is not None and method in self.methods

    async def request(self, method: str, params: Any = None, *, timeout: float | None = None) -> Any:
        """The result of a JSON-RPC request; `None` where it has no value.

        :raises PeerFailed: if the caller answers with an error of its own.
        :raises PeerRefused: if it does not answer.
        :raises RequestRefused: as for every request.
        """
        asked = CallerAsk(method=method)
        if params is not None:
            asked.params = _json.encode(params)
        request = OutboundRequest(caller_request=asked)
        if timeout is not None:
            set_seconds(request.timeout, timeout)
        reply = await self._port.ask(request)
        return _json.decode(reply.caller.result) if reply.caller.HasField("result") else None

    async def elicit(self, message: str, schema: Mapping[str, Any], *, timeout: float | None = None) -> Elicited:
        """Asks a person to fill in what the schema describes.

        :raises PeerRefused: if nobody answers.
        :raises RequestRefused: as for every request.
        """
        params = {"message": message, "requestedSchema": dict(schema)}
        answer = await self.request("elicitation/create", params, timeout=timeout)
        answer = answer if isinstance(answer, dict) else {}
        return Elicited(str(answer.get("action", "cancel")), answer.get("content"))

    async def sample(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        timeout: float | None = None,
        **more: Any,
    ) -> Any:
        """Asks the caller's model. `more` is what MCP's `sampling/createMessage` takes beside these.

        :raises PeerRefused: if nobody answers.
        :raises RequestRefused: as for every request.
        """
        params = {"messages": [dict(message) for message in messages], "maxTokens": max_tokens, **more}
        return await self.request("sampling/createMessage", params, timeout=timeout)

    async def roots(self, *, timeout: float | None = None) -> list[Any]:
        """The places that the caller lets tools work in.

        :raises PeerRefused: if nobody answers.
        :raises RequestRefused: as for every request.
        """
        answer = await self.request("roots/list", timeout=timeout)
        roots = answer.get("roots", []) if isinstance(answer, dict) else []
        return list(roots)


class NestedTools:
    """Other tools, called within this call: its scope, deadline, trace and cancel are theirs too."""

    def __init__(self, port: Port, remaining_depth: int | None) -> None:
        self._port = port
        self.remaining_depth = remaining_depth
        """How many levels are left below this call; `None` where other tools cannot be called."""

    async def has(self, tool: str) -> bool:
        """Whether a tool can be called.

        :raises RequestRefused: as for every request.
        """
        reply = await self._port.ask(OutboundRequest(tools_has=ToolsHas(tool=tool)))
        return reply.tool_available.available

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | bytes | None = None,
        *,
        timeout: float | None = None,
        on_progress: Callable[[Any], None] | None = None,
    ) -> Any:
        """The value that another tool returned. `on_progress` is told what it reports.

        :raises CallFailed: if it did not return.
        :raises ErrorResult: if it says that its result is an error.
        :raises CallPaused: if it waits for an answer from outside. Let it go on, and this call pauses with it: when it
            is resumed, the same call of the same tool goes on with the answer.
        :raises RequestRefused: as for every request.
        """
        return value_of(await self.outcome(tool, arguments, timeout=timeout, on_progress=on_progress))

    async def outcome(
        self,
        tool: str,
        arguments: Mapping[str, Any] | bytes | None = None,
        *,
        timeout: float | None = None,
        on_progress: Callable[[Any], None] | None = None,
    ) -> Outcome:
        """How a call of another tool ended, which is not raised. `on_progress` is told what it reports.

        :raises RequestRefused: as for every request.
        """
        asked = ToolsCall(tool=tool)
        if arguments is not None:
            asked.arguments = _json.encode_arguments(arguments)
        request = OutboundRequest(tools_call=asked)
        if timeout is not None:
            set_seconds(request.timeout, timeout)
        reported = None if on_progress is None else lambda payload: on_progress(_json.decode(payload))
        return read_outcome((await self._port.ask(request, None, reported)).tool_outcome)
