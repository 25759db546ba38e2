"""A typed function as a tool: its arguments and result as JSON Schema, and the way from and to JSON."""

import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, NotRequired, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import PydanticUndefined, core_schema

from pillion import _json
from pillion._worker.context import ToolContext
from pillion._worker.wanted import WantedParameter

if sys.version_info >= (3, 12):
    from typing import TypedDict
else:  # pydantic cannot read the older one of `typing`
    from typing_extensions import TypedDict

_KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NONE = type(None)


class ToolRefused(TypeError):
    """A function cannot be a tool. The text says what to change."""


class _Schemas(GenerateJsonSchema):
    """As the sidecar takes them: no titles that say a name again, no look-around in patterns."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        del schema
        return False

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        if self.mode == "serialization":
            return {"type": "string"}
        number = super().decimal_schema(schema)
        for part in number.get("anyOf", ()):
            part.pop("pattern", None)
        return number


class Arguments:
    """The arguments of a function, but for its context."""

    def __init__(self, function: Callable[..., Any], name: str, wants: Mapping[str, str]) -> None:
        """Reads the signature.

        :raises ToolRefused: if it cannot be that of a tool.
        """
        self.context_parameter: str | None = None
        """The parameter that takes the context; `None` if there is none."""
        self.defaults: dict[str, FieldInfo] = {}
        self.wanted: dict[str, WantedParameter] = {}
        """The parameters that are artifacts."""
        hints = hints_of(function, name)
        fields: dict[str, Any] = {}
        self._shown: dict[str, Any] = {}
        is_open = False
        for parameter in inspect.signature(function).parameters.values():
            hint = hints.get(parameter.name, Any)
            if _takes_context(parameter, hint):
                self.context_parameter = parameter.name
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD and hint in (Any, object):
                is_open = True
            elif parameter.kind in _KEYWORDS:
                if parameter.name in wants:
                    wanted = WantedParameter(parameter.name, hint, lambda kind: _adapter(kind, name))
                    self.wanted[parameter.name] = wanted
                    hint = wanted.schema_hint
                fields[parameter.name] = self._field(parameter, hint)
            else:
                raise ToolRefused(
                    f"Tool {name}: its parameter {parameter.name} cannot be given by name; a tool takes named "
                    "parameters, and **arguments of type Any."
                )
        for missing in wants.keys() - fields.keys():
            raise ToolRefused(f"Tool {name}: it wants {missing}, which is no parameter of it.")
        make: Any = TypedDict
        record = make(name, fields)
        record.__pydantic_config__ = ConfigDict(extra="allow" if is_open else "forbid")
        self._adapter = _adapter(record, name)
        self.schema = _schema_of(self._adapter, "validation", name)
        """JSON Schema of the arguments."""
        for parameter_name, default in self._shown.items():
            if parameter_name in wants:
                continue
            self.schema["properties"][parameter_name].setdefault("default", default)

    def _field(self, parameter: inspect.Parameter, hint: Any) -> Any:
        default = parameter.default
        if default is inspect.Parameter.empty:
            return hint
        if isinstance(default, FieldInfo):
            field: Any = Annotated[hint, default]
            if default.is_required():
                return field
            self.defaults[parameter.name] = default
            default = default.default
        else:
            field = hint
        if default is not PydanticUndefined:
            # A default that is no JSON stays the function's own affair.
            with suppress(_json.JsonRefused):
                self._shown[parameter.name] = _json.decode(_json.encode(default))
        return NotRequired[field]

    def read(self, text: bytes) -> dict[str, Any]:
        """The arguments by name, checked and converted to what the function's annotations say.

        :raises JsonRefused: if the text is not JSON.
        :raises pydantic.ValidationError: if they do not fit.
        """
        values: dict[str, Any] = self._adapter.validator.validate_python(_json.decode(text))
        for name, field in self.defaults.items():
            if name not in values:
                values[name] = field.get_default(call_default_factory=True)
        return values


class Returned:
    """What a function returns."""

    def __init__(self, annotation: Any, name: str) -> None:
        """Reads the annotation of the result.

        :raises ToolRefused: if it has no JSON form.
        """
        annotation = _NONE if annotation is None else annotation
        self.nothing = annotation in (_NONE, inspect.Signature.empty)
        """Whether its `None` is no value, rather than `null`."""
        self._adapter: TypeAdapter[Any] | None = None
        self.schema: dict[str, Any] | None = None
        """JSON Schema of the value; `None` where any value may come."""
        if annotation is not _NONE and not _is_open(annotation):
            self._adapter = _adapter(annotation, name)
            self.schema = _schema_of(self._adapter, "serialization", name)

    def write(self, value: Any) -> bytes | None:
        """The JSON text of a value; `None` for none.

        :raises JsonRefused: if there is no text of the same meaning.
        :raises pydantic.ValidationError: if it is not what is declared.
        """
        adapter = self._adapter
        if adapter is None:
            return None if value is None and self.nothing else _json.encode(value)
        value = adapter.validator.validate_python(value)
        return _json.encode(adapter.serializer.to_python(value, mode="json", by_alias=True, warnings="error"))


def hints_of(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """The annotations of a function.

    :raises ToolRefused: if one cannot be found.
    """
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except NameError as error:
        raise ToolRefused(
            f"Tool {name}: its annotation {error.name} is not found; name types where the module can see them."
        ) from None


def _takes_context(parameter: inspect.Parameter, hint: Any) -> bool:
    if hint is ToolContext:
        return True
    if get_origin(hint) in (Union, types.UnionType):
        return ToolContext in get_args(hint)
    return parameter.name == "ctx" and parameter.annotation is inspect.Parameter.empty


def _is_open(annotation: Any) -> bool:
    """Whether an annotation says nothing of what comes: then numbers are written exactly, which pydantic would not."""
    if annotation in (Any, object, dict, list, inspect.Signature.empty):
        return True
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (dict, list, Mapping, typing.Mapping):
        return all(argument is str or _is_open(argument) for argument in arguments[:-1]) and _is_open(arguments[-1])
    return False


def _adapter(annotation: Any, name: str) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation)
    except (PydanticUserError, TypeError) as error:
        raise ToolRefused(f"Tool {name}: {error}") from None


def _schema_of(adapter: TypeAdapter[Any], mode: JsonSchemaMode, name: str) -> dict[str, Any]:
    try:
        schema = adapter.json_schema(schema_generator=_Schemas, mode=mode)
    except PydanticUserError as error:
        raise ToolRefused(f"Tool {name}: {error}") from None
    schema.pop("title", None)
    return schema
