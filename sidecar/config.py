"""Settings: a TOML file, then the environment, then flags; checked whole before anything starts."""

import ipaddress
import math
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from sidecar.calls.limits import CallLimits
from sidecar.credentials.settings import CredentialSettings, Granted, anchor
from sidecar.doors.address import Address
from sidecar.mistakes import OF_KEYS, Lines, Mistake, Place, mistakes_of, not_a_setting
from sidecar.telemetry.logs import Format, Level
from sidecar.wire.limits import WireLimits
from sidecar.workers.limits import WorkerLimits

_UNIX = "unix:"
# The kernel's limit is 108 with the zero that ends it.
_PATH_BYTES = 107
_VARIABLE = "PILLION__"
_PATHS = ("state_dir", "token_file", "directory")
_LAST_PORT = 65_535
_NAME = r"^[a-zA-Z0-9_-]{1,64}$"


class ConfigRefused(ValueError):
    """The settings cannot be used. The text says what to change, a line for each mistake."""

    def __init__(self, *mistakes: Mistake | str) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = mistakes


def _only_known(kind: type) -> BeforeValidator:
    known = sorted(field.name for field in fields(kind))

    def check(value: Any) -> Any:
        if isinstance(value, Mapping):
            wrong = {name: not_a_setting(name, known) for name in value if name not in known}
            for name, limit in value.items():
                if name in known and not _is_positive(limit):
                    wrong[name] = "must be a positive number"
            if wrong:
                raise PydanticCustomError(OF_KEYS, "{keys}", {"keys": wrong})
        return value

    return BeforeValidator(check)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


class Listen(BaseModel):
    """Where to listen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    callers: str | None = None
    """For callers: `unix:/path`, or `host:port` on loopback. None: a socket in the state directory."""
    workers: str | None = None
    """For workers, likewise."""
    insecure: bool = False
    """Whether TCP on loopback is served to whoever connects. For tests alone."""


class Worker(BaseModel):
    """A worker set that may attach."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=_NAME)
    """The name it attaches as."""
    token_file: Path | None = None
    """The file that holds its token, for a worker that is started elsewhere."""
    tools: frozenset[str] = Field(default=frozenset(("*",)), min_length=1)
    """The tools it may register; `*`: any."""
    credentials: Granted = ()
    """The credentials its tools may be issued: `service`, `service:user` for the subject's own, `*` for any."""
    command: tuple[str, ...] | None = Field(default=None, min_length=1)
    """What the sidecar starts, and keeps running; none for a worker that is started elsewhere."""
    directory: Path | None = None
    """Where the command is run. None: where the settings are."""
    environment: dict[str, str] = Field(default={}, repr=False)
    """Variables to set for it. They may hold secrets, so they are not printed."""
    inherit: tuple[str, ...] = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH")
    """Variables of the sidecar that it may see. All others are not passed on."""
    instances: int = Field(default=1, ge=1, le=256)
    """How many processes of it."""
    user: str | None = None
    """The user it runs as. None: the sidecar's own, which puts it inside the sidecar's trust boundary."""

    @model_validator(mode="after")
    def _started_or_attached(self) -> Self:
        if (self.command is None) == (self.token_file is None):
            raise ValueError("name a command for the sidecar to start, or a token_file to attach with, and not both")
        return self


class Limits(BaseModel):
    """Bounds that differ from the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    calls: Annotated[CallLimits, _only_known(CallLimits)] = CallLimits()
    """Of calls."""
    wire: Annotated[WireLimits, _only_known(WireLimits)] = WireLimits()
    """Of streams."""
    workers: Annotated[WorkerLimits, _only_known(WorkerLimits)] = WorkerLimits()
    """Of workers."""


class Log(BaseModel):
    """What is logged, to the standard error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Format | None = None
    """None: text on a terminal, JSON elsewhere."""
    level: Level = "info"
    """The least of what is logged of the sidecar and its workers; of libraries it is warnings."""


class Metrics(BaseModel):
    """Where `/metrics` is served for Prometheus."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    listen: str
    """`host:port`, on loopback unless `public` is set."""
    public: bool = False
    """Whether an address off loopback is meant: whoever reaches it may read."""

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.listen.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)

    @field_validator("listen")
    @classmethod
    def _is_address(cls, text: str) -> str:
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or int(port) > _LAST_PORT:
            raise ValueError("is no address; write 127.0.0.1:9464, say")
        return text

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        if not self.public and not _is_loopback(self.place[0]):
            raise ValueError(
                f"listens off loopback, at {self.listen}, where anyone could read; listen on 127.0.0.1, or set public "
                "if that is meant"
            )
        return self


class Tracing(BaseModel):
    """Where the spans of calls go, over OTLP by gRPC."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str
    """The collector: `http://host:4317`, or `https://` where it has a certificate."""
    ratio: float = Field(default=1.0, ge=0, le=1)
    """How many of the traces that begin here are kept; one that a caller began is kept if the caller keeps it."""
    service: str = Field(default="pillion", min_length=1)
    """The `service.name` of the spans."""

    @field_validator("endpoint")
    @classmethod
    def _is_collector(cls, text: str) -> str:
        try:
            parts = urlsplit(text)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and bool(parts.port)
        except ValueError:
            usable = False
        else:
            usable = usable and parts.username is None and not parts.path.strip("/")
        if not usable:
            # It is not quoted: there may be a password in it.
            raise ValueError("is no http://host:port without user and path; write http://127.0.0.1:4317, say")
        return text


class Settings(CredentialSettings):
    """All settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state_dir: Path
    """Where what must last is kept. Private to this user."""
    listen: Listen = Listen()
    worker: tuple[Worker, ...] = ()
    limits: Limits = Limits()
    log: Log = Log()
    metrics: Metrics | None = None
    """None: not served."""
    tracing: Tracing | None = None
    """None: no spans; a caller's trace context is passed on as it came."""

    @property
    def callers(self) -> str:
        """Where callers find the sidecar."""
        return self.listen.callers or f"{_UNIX}{self.state_dir.absolute() / 'callers.sock'}"

    @property
    def workers(self) -> str:
        """Where workers find it."""
        return self.listen.workers or f"{_UNIX}{self.state_dir.absolute() / 'workers.sock'}"


class Layer(NamedTuple):
    """Settings that do not come from the file. Later layers win, setting by setting."""

    values: Mapping[str, Any]
    sources: Mapping[Place, str]
    """The variable or flag that each of them came by."""

    @classmethod
    def of(cls, given: Mapping[Place, tuple[str, Any]]) -> "Layer":
        """Settings by their places, each with what it came by."""
        values: dict[str, Any] = {}
        for place, (_, value) in given.items():
            layer = value
            for name in reversed(place):
                layer = {name: layer}
            _merge(values, layer)
        return cls(values, {place: source for place, (source, _) in given.items()})


def read(path: Path | None, environment: Mapping[str, str], flags: Layer | None = None) -> Settings:
    """The settings of a file, then of `PILLION__SECTION__KEY` variables, then of flags.

    :raises ConfigRefused: with every mistake at once.
    """
    text = ""
    merged: dict[str, Any] = {}
    source = "settings"
    if path is not None:
        source = str(path)
        text = _text_of(path)
        try:
            merged = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigRefused(f"{path} is not TOML: {error}.") from None
        # Paths in a file are meant from where the file is.
        _anchor(merged, path.absolute().parent)
    sources: dict[Place, str] = {}
    for layer in (_of_environment(environment), flags):
        if layer is not None:
            _merge(merged, layer.values)
            sources |= layer.sources
    if "state_dir" not in merged:
        merged["state_dir"] = default_state_dir(environment)
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        raise ConfigRefused(*mistakes_of(error, Settings, source, text, sources)) from None
    lines = Lines(text)
    names = [worker.name for worker in settings.worker]
    twice = [
        Mistake(source, lines.of(("worker", number, "name")), ("worker", number, "name"), "is there twice")
        for number, name in enumerate(names)
        if name in names[:number]
    ]
    if twice:
        raise ConfigRefused(*twice)
    return settings


def default_state_dir(environment: Mapping[str, str]) -> Path:
    """Where state is kept if nobody says: this user's state directory.

    :raises ConfigRefused: where this user has none, as a process without a home.
    """
    if environment.get("XDG_STATE_HOME"):
        return Path(environment["XDG_STATE_HOME"]) / "pillion"
    if environment.get("HOME"):
        return Path(environment["HOME"]) / ".local" / "state" / "pillion"
    raise ConfigRefused("There is no HOME to keep state in; set state_dir, or PILLION__STATE_DIR.")


def _text_of(path: Path) -> str:
    try:
        # A byte order mark is no part of the text, and TOML knows both ends of a line.
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise ConfigRefused(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ConfigRefused(f"{path} is not UTF-8 from byte {error.start} on; save it as UTF-8.") from None


def _of_environment(environment: Mapping[str, str]) -> Layer:
    # The double underscore keeps away what a cluster makes for a service of this name: PILLION_PORT and such.
    return Layer.of(
        {
            tuple(variable.removeprefix(_VARIABLE).lower().split("__")): (variable, _value(text))
            for variable, text in environment.items()
            if variable.startswith(_VARIABLE)
        }
    )


def _value(text: str) -> Any:
    """A variable's text as TOML has it, else as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _anchor(values: dict[str, Any], directory: Path) -> None:
    """Makes the paths of a file those that are meant: from where the file is."""
    anchor(values, directory)
    workers = values.get("worker")
    tables = [values, *(table for table in (workers if isinstance(workers, list) else ()) if isinstance(table, dict))]
    for table in tables:
        if "command" in table:
            table.setdefault("directory", str(directory))
        for key in _PATHS:
            if isinstance(table.get(key), str):
                table[key] = str(directory / table[key])
    listen = values.get("listen")
    if isinstance(listen, dict):
        for key, place in listen.items():
            if isinstance(place, str) and place.startswith(_UNIX):
                listen[key] = f"{_UNIX}{directory / place.removeprefix(_UNIX)}"


def address(text: str, *, insecure: bool) -> Address:
    """An address to listen on.

    :raises ConfigRefused: if it is malformed or not safe to listen on.
    """
    if text.startswith(_UNIX):
        path = Path(text.removeprefix(_UNIX)).absolute()
        if len(str(path).encode(errors="surrogateescape")) > _PATH_BYTES:
            raise ConfigRefused(f"The socket path {path} is over the {_PATH_BYTES} bytes that a socket may have.")
        return Address(f"{_UNIX}{path}", path)
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigRefused(f"{text} is no address; write unix:/path/to/socket or 127.0.0.1:port.")
    if not _is_loopback(host.strip("[]")):
        raise ConfigRefused(f"{text} is not on loopback, where anyone could connect; use a unix socket.")
    if not insecure:
        raise ConfigRefused(
            f"{text} would serve every user of this machine; use a unix socket, or set listen.insecure for a test."
        )
    return Address(text, None)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
