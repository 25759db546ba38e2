"""Settings: one TOML file, checked whole before anything starts."""

import ipaddress
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from sidecar.calls.limits import CallLimits
from sidecar.doors.address import Address
from sidecar.wire.limits import WireLimits
from sidecar.workers.limits import WorkerLimits

_UNIX = "unix:"
# The kernel's limit is 108 with the zero that ends it.
_PATH_BYTES = 107
_NAME = r"^[a-zA-Z0-9_-]{1,64}$"


class ConfigRefused(ValueError):
    """The settings cannot be used. The text says what to change, a line for each mistake."""


def _only_known(kind: type) -> BeforeValidator:
    known = {field.name for field in fields(kind)}

    def check(value: Any) -> Any:
        if isinstance(value, Mapping):
            unknown = sorted(set(value) - known)
            if unknown:
                raise ValueError(f"unknown: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
            wrong = sorted(name for name, limit in value.items() if not isinstance(limit, int | float) or limit <= 0)
            if wrong:
                raise ValueError(f"must be a positive number: {', '.join(wrong)}")
        return value

    return BeforeValidator(check)


class Listen(BaseModel):
    """Where to listen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    callers: str
    """For callers: `unix:/path`, or `host:port` on loopback."""
    workers: str
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
    command: tuple[str, ...] | None = Field(default=None, min_length=1)
    """What the sidecar starts, and keeps running; none for a worker that is started elsewhere."""
    directory: Path | None = None
    """Where the command is run. None: where the settings are."""
    environment: dict[str, str] = {}
    """Variables to set for it."""
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


class Settings(BaseModel):
    """All settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state_dir: Path
    """Where what must last is kept. Private to this user."""
    listen: Listen
    worker: tuple[Worker, ...] = ()
    limits: Limits = Limits()


def load(path: Path) -> Settings:
    """Reads and checks the settings.

    :raises ConfigRefused: with a line for each mistake.
    """
    try:
        raw = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigRefused(f"{path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigRefused(f"{path} is not TOML: {error}.") from None
    try:
        settings = Settings.model_validate(raw)
    except ValidationError as error:
        mistakes = "\n".join(
            f"{path}: {'.'.join(map(str, mistake['loc']))}: {mistake['msg']}." for mistake in error.errors()
        )
        raise ConfigRefused(mistakes) from None
    names = [worker.name for worker in settings.worker]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigRefused(f"{path}: worker: {', '.join(twice)} is there twice; each worker has one name.")
    return settings


def address(text: str, *, insecure: bool) -> Address:
    """An address to listen on.

    :raises ConfigRefused: if it is malformed or not safe to listen on.
    """
    if text.startswith(_UNIX):
        path = Path(text.removeprefix(_UNIX)).absolute()
        if len(str(path).encode()) > _PATH_BYTES:
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
