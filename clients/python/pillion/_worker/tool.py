"""A tool: a typed function, and what it declares of itself."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, overload

from pillion import _json
from pillion._caller.listing import ToolAnnotations
from pillion._facts import Effects, TeardownScope, set_seconds
from pillion._gen.pillion.v1.tool_pb2 import ToolDescriptor
from pillion._worker.credentials import CredentialMode
from pillion._worker.schema import Arguments, Returned, ToolRefused, hints_of

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FROM_ANNOTATION: Any = object()


@dataclass(frozen=True, slots=True)
class Need:
    """A credential that must be there before the tool runs."""

    service: str
    scopes: tuple[str, ...] = ()
    mode: CredentialMode = CredentialMode.MACHINE


@dataclass(frozen=True, slots=True)
class Placement:
    """Results over so many bytes become an artifact of this kind."""

    over_bytes: int
    kind: str | None = None


_HELD = (None, TeardownScope.RUN, TeardownScope.SESSION)


@dataclass(frozen=True, slots=True)
class Declared:
    """What a tool declares beside its function. `None` leaves it to the worker or the sidecar."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    effects: Effects = Effects.UNSAFE
    timeout: float | None = None
    max_timeout: float | None = None
    concurrency: int | None = None
    output: Any = _FROM_ANNOTATION
    annotations: ToolAnnotations | None = None
    needs: Sequence[Need] = ()
    wants: Mapping[str, str] | None = None
    holds: TeardownScope | None = None
    result_ceiling: int | None = None
    placement: Placement | None = None


class Tool(Generic[Parameters, Value]):
    """A function that a worker hosts. It can still be called as the function it is."""

    def __init__(self, function: Callable[Parameters, Value], declared: Declared) -> None:
        self.function = function
        """The function."""
        self.name: str = declared.name or str(getattr(function, "__name__", ""))
        """The name that callers use."""
        if not _NAME.fullmatch(self.name):
            raise ToolRefused(f"{self.name!r} is no name of a tool: 1 to 64 letters, digits, underscores and hyphens.")
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ToolRefused(f"Tool {self.name}: it yields; report by ctx.progress and return the result.")
        if declared.holds not in _HELD:
            raise ToolRefused(
                f"Tool {self.name}: holds is a run or a session; give TeardownScope.RUN or TeardownScope.SESSION."
            )
        self.effects = declared.effects
        """What running it does to the world."""
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004  # an object with an asynchronous __call__ is a function too
        )
        """Whether it runs on the event loop; a plain function runs in a thread."""
        self.wants = dict(declared.wants or {})
        """Arguments that are references to artifacts, and the kind of each."""
        self.placement = declared.placement
        """Where its large results go."""
        self.arguments = Arguments(function, self.name, self.wants)
        """Its arguments."""
        annotation = declared.output
        if annotation is _FROM_ANNOTATION:
            annotation = hints_of(function, self.name).get("return", inspect.Signature.empty)
        self.returned = Returned(inspect.Signature.empty if declared.output is None else annotation, self.name)
        """Its result."""
        self.descriptor = self._described(declared)
        """How it presents itself to the sidecar."""
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Value:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"

    def _described(self, declared: Declared) -> ToolDescriptor:
        described = ToolDescriptor(
            name=self.name,
            title=declared.title,
            description=declared.description or inspect.getdoc(self.function) or "",
            input_schema=_json.encode(self.arguments.schema),
            wants=self.wants,
            concurrency=declared.concurrency,
            result_ceiling_bytes=declared.result_ceiling,
        )
        described.effects = declared.effects.value  # type: ignore[assignment]  # the same numbers
        if self.returned.schema is not None:
            described.output_schema = _json.encode(self.returned.schema)
        if declared.timeout is not None:
            set_seconds(described.default_timeout, declared.timeout)
        if declared.max_timeout is not None:
            set_seconds(described.max_timeout, declared.max_timeout)
        if declared.annotations is not None:
            described.annotations.SetInParent()
            for hint in ("read_only", "destructive", "idempotent", "open_world"):
                stated = getattr(declared.annotations, hint)
                if stated is not None:
                    setattr(described.annotations, hint, stated)
        for need in declared.needs:
            added = described.needs.add(service=need.service, scopes=need.scopes)
            added.mode = need.mode.value  # type: ignore[assignment]  # the same numbers
        if declared.holds is not None:
            described.holds = declared.holds.value  # type: ignore[assignment]  # the same numbers
        if declared.placement is not None:
            described.placement.over_bytes = declared.placement.over_bytes
            if declared.placement.kind is not None:
                described.placement.kind = declared.placement.kind
        return described


@overload
def tool(function: Callable[Parameters, Value], /) -> Tool[Parameters, Value]: ...


@overload
def tool(
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    effects: Effects = Effects.UNSAFE,
    timeout: float | None = None,
    max_timeout: float | None = None,
    concurrency: int | None = None,
    output: Any = _FROM_ANNOTATION,
    annotations: ToolAnnotations | None = None,
    needs: Sequence[Need] = (),
    wants: Mapping[str, str] | None = None,
    holds: TeardownScope | None = None,
    result_ceiling: int | None = None,
    placement: Placement | None = None,
) -> Callable[[Callable[Parameters, Value]], Tool[Parameters, Value]]: ...


def tool(function: Callable[..., Any] | None = None, /, **declared: Any) -> Any:
    """Makes a typed function a tool.

    For example::

        @pillion.tool(effects=pillion.READ, timeout=30)
        async def count(path: str, ctx: pillion.ToolContext) -> int:
            \"\"\"Counts the lines of a file. Use it before reading one.\"\"\"

    Its parameters are the tool's arguments: their annotations, as pydantic reads them, become the JSON Schema that the
    sidecar checks, and what arrives is converted to them. A parameter annotated `ToolContext` (or an unannotated `ctx`)
    takes the context and is in no schema; `**arguments: Any` takes any others. The docstring is the description. An
    annotated result becomes the output schema, unless `output` is another type, or `None` for no schema.

    An `async` function runs on the worker's event loop and must not block it; a plain one runs in a thread. `effects`
    decides whether the tool may run again after a lost worker. `timeout` and `max_timeout` are in seconds,
    `concurrency` is how many calls of it one worker runs at once. `needs`, `wants`, `holds`, `result_ceiling` and
    `placement` are what the protocol says of a tool's descriptor.

    :raises ToolRefused: if the function cannot be a tool; the text says what to change.
    """
    if function is not None:
        return Tool(function, Declared(**declared))
    return lambda decorated: Tool(decorated, Declared(**declared))


def made_tool(candidate: Callable[..., Any]) -> "Tool[..., Any]":
    """The same tool, or a function as one."""
    return candidate if isinstance(candidate, Tool) else Tool(candidate, Declared())
