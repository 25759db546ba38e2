import datetime as dt
import enum
import json
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

import pillion
from pillion.errors import JsonRefused, ToolRefused
from sidecar.calls.schema import Schema


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


class Node(BaseModel):
    name: str
    children: list["Node"] = []


class Summary(BaseModel):
    total: int
    mean: float


@pillion.tool(effects=pillion.READ, title="A title", timeout=2.5, max_timeout=10, concurrency=3)
async def rich(  # noqa: PLR0913, PLR0917  # one parameter of each type
    text: str,
    ctx: pillion.ToolContext,
    count: Annotated[int, Field(ge=1, le=9, description="How many.")] = 3,
    colour: Colour = Colour.RED,
    points: list[Point] | None = None,
    tree: Node | None = None,
    amount: Decimal = Decimal("1.5"),
    when: dt.datetime | None = None,
    key: uuid.UUID | None = None,
    data: bytes = b"",
    kind: Literal["a", "b"] = "a",
    tags: set[str] = Field(default_factory=set),  # noqa: B008  # as pydantic has it
    maximum: float = Field(default=0.5, gt=0),
) -> Summary:
    """Does a thing.

    And more of it.
    """
    return Summary(total=count, mean=maximum)


def test_the_sidecar_takes_the_schemas_of_every_type() -> None:
    schema = Schema(rich.descriptor.input_schema, of_arguments=True)
    assert not schema.issues({"text": "a"})
    assert not schema.issues(
        {
            "text": "a",
            "count": 9,
            "colour": "blue",
            "points": [{"x": 1}],
            "tree": {"name": "a", "children": [{"name": "b"}]},
            "amount": 1.5,
            "when": "2026-01-01T00:00:00Z",
            "key": "12345678-1234-5678-1234-567812345678",
            "kind": "b",
            "tags": ["x"],
            "maximum": 2,
        }
    )
    for wrong in ({}, {"text": 1}, {"text": "a", "count": 10}, {"text": "a", "other": 1}, {"text": "a", "kind": "c"}):
        assert schema.issues(wrong), wrong
    assert not Schema(rich.descriptor.output_schema, of_arguments=False).issues({"total": 1, "mean": 0.5})


def test_what_a_tool_declares_is_in_its_descriptor() -> None:
    described = rich.descriptor
    assert (described.name, described.title) == ("rich", "A title")
    assert described.description == "Does a thing.\n\nAnd more of it."
    assert described.effects == 1
    assert described.default_timeout.ToMilliseconds() == 2_500
    assert described.max_timeout.seconds == 10
    assert described.concurrency == 3
    schema = json.loads(described.input_schema)
    assert "ctx" not in schema["properties"]
    assert schema["required"] == ["text"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["count"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 9,
        "description": "How many.",
        "default": 3,
    }
    assert schema["properties"]["maximum"]["default"] == 0.5
    assert "title" not in schema
    assert not any("title" in shown for shown in schema["properties"].values())


def test_arguments_are_converted_to_what_the_annotations_say() -> None:
    got = rich.arguments.read(
        b'{"text":"a","colour":"blue","points":[{"x":1}],"amount":0.1000000000000000055511151231257827,'
        b'"when":"2026-01-01T00:00:00Z","key":"12345678-1234-5678-1234-567812345678","tags":["x","x"],"data":"hi"}'
    )
    assert got["colour"] is Colour.BLUE
    assert got["points"] == [Point(x=1)]
    assert got["amount"] == Decimal("0.1000000000000000055511151231257827")
    assert got["when"] == dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    assert got["key"] == uuid.UUID("12345678-1234-5678-1234-567812345678")
    assert got["tags"] == {"x"}
    assert got["data"] == b"hi"
    assert got["maximum"] == 0.5
    assert "count" not in got, "a default is the function's own"
    with pytest.raises(ValidationError):
        rich.arguments.read(b'{"text":"a","count":0}')


def test_an_open_tool_takes_anything_exactly() -> None:
    @pillion.tool
    async def echo(**arguments: Any) -> dict[str, Any]:
        return arguments

    text = b'{"a":0.1000000000000000055511151231257827,"b":123456789012345678901234567890,"c":[1.10,{"d":null}]}'
    value = echo.arguments.read(text)
    assert echo.returned.write(value) == text.replace(b"1.10", b"1.1")
    assert not echo.descriptor.HasField("output_schema")
    assert Schema(echo.descriptor.input_schema, of_arguments=True).issues({"x": 1}) == []


def test_no_value_and_null_differ() -> None:
    async def nothing() -> None: ...
    async def unsaid():  # type: ignore[no-untyped-def]  # noqa: ANN202  # that it says nothing is the point
        ...
    async def maybe() -> int | None: ...
    async def whatever() -> Any: ...

    assert pillion.tool(nothing).returned.write(None) is None
    assert pillion.tool(unsaid).returned.write(None) is None
    assert pillion.tool(maybe).returned.write(None) == b"null"
    assert pillion.tool(whatever).returned.write(None) == b"null"


def test_results_are_held_to_the_annotation() -> None:
    async def number() -> int:
        return 1

    async def ratio() -> float:
        return 1.0

    async def points() -> list[Point]:
        return []

    async def amount() -> Decimal:
        return Decimal(1)

    assert pillion.tool(points).returned.write([{"x": 1}]) == b'[{"x":1,"y":0}]'
    assert pillion.tool(amount).returned.write(Decimal("1.10")) == b'"1.10"'
    assert Schema(pillion.tool(amount).descriptor.output_schema, of_arguments=False).issues("1.10") == []
    assert pillion.tool(ratio).returned.write(1) == b"1.0"
    with pytest.raises(ValidationError):
        pillion.tool(number).returned.write("x")
    with pytest.raises(ValidationError):
        pillion.tool(number).returned.write(None)
    for value in (float("nan"), float("inf")):
        with pytest.raises(JsonRefused):
            pillion.tool(ratio).returned.write(value)


def test_output_overrides_the_annotation() -> None:
    @pillion.tool(output=None)
    async def unchecked() -> int:
        return 1

    @pillion.tool(output=Point)
    async def checked() -> Any:
        return {"x": 1}

    assert not unchecked.descriptor.HasField("output_schema")
    assert unchecked.returned.write(1) == b"1"
    assert json.loads(checked.descriptor.output_schema)["type"] == "object"
    assert checked.returned.write({"x": 1}) == b'{"x":1,"y":0}'


def positional(first: int, /) -> None: ...
def variadic(*numbers: int) -> None: ...
def typed_rest(**rest: int) -> None: ...
async def yields() -> Any:
    yield 1


def unknown(value: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821  # there is none


class Opaque: ...


def opaque(value: Opaque) -> None: ...


@pytest.mark.parametrize(
    "function", [positional, variadic, typed_rest, yields, unknown, opaque], ids=lambda function: function.__name__
)
def test_a_function_that_cannot_be_a_tool_is_refused(function: Any) -> None:
    with pytest.raises(ToolRefused, match=function.__name__):
        pillion.tool(function)


def test_names_are_checked() -> None:
    with pytest.raises(ToolRefused, match="no name of a tool"):
        pillion.tool(name="has space")(positional)
    with pytest.raises(ToolRefused, match="no name of a tool"):
        pillion.tool(lambda: None)


@pytest.mark.parametrize("holds", ["session", pillion.TeardownScope.CALL, pillion.TeardownScope.SHUTDOWN])
def test_what_cannot_be_held_is_refused(holds: Any) -> None:
    with pytest.raises(ToolRefused, match=r"Tool rich: holds is .* TeardownScope\.SESSION"):
        pillion.tool(name="rich", holds=holds)(rich.function)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ToolRefused, match="Two tools"):
        pillion.Worker([rich, rich], target="unix:x", worker="w", token="t")


async def test_a_tool_is_still_the_function_it_was() -> None:
    context: Any = None
    assert await rich("a", context, count=2, maximum=0.5) == Summary(total=2, mean=0.5)


def test_a_bare_parameter_named_ctx_takes_the_context() -> None:
    @pillion.tool
    async def bare(ctx, a: int) -> int:  # type: ignore[no-untyped-def]  # noqa: ANN001  # the point
        return a

    assert bare.arguments.context_parameter == "ctx"
    assert list(json.loads(bare.descriptor.input_schema)["properties"]) == ["a"]


def test_declared_needs_and_wants_are_in_the_descriptor() -> None:
    @pillion.tool(
        needs=[pillion.Need("github", ("repo",), pillion.CredentialMode.USER)],
        wants={"image": "file/png"},
        holds=pillion.TeardownScope.RUN,
        result_ceiling=1_000,
        placement=pillion.Placement(500, "text"),
        annotations=pillion.ToolAnnotations(read_only=True, destructive=False),
    )
    async def all_of_it(image: bytes) -> None: ...

    described = all_of_it.descriptor
    assert (described.needs[0].service, list(described.needs[0].scopes), described.needs[0].mode) == (
        "github",
        ["repo"],
        2,
    )
    assert dict(described.wants) == {"image": "file/png"}
    assert json.loads(described.input_schema)["properties"]["image"] == {"type": "string"}
    assert described.holds == 2
    assert described.result_ceiling_bytes == 1_000
    assert (described.placement.over_bytes, described.placement.kind) == (500, "text")
    assert described.annotations.read_only
    assert described.annotations.HasField("destructive")
    assert not described.annotations.HasField("open_world")
