"""The sections of the settings, each with what it takes and what is wrong with a value.

They are used as parts of the settings, and built as such alone: each by itself would stay in memory a second time.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from sidecar.artifacts.limits import ArtifactLimits
from sidecar.calls.limits import CallLimits
from sidecar.credentials.settings import Granted
from sidecar.doors.address import is_loopback
from sidecar.jwt_section import Jwt
from sidecar.mistakes import OF_KEYS, not_a_setting
from sidecar.scope import ScopeLimits
from sidecar.telemetry.logs import Format, Level
from sidecar.wire.limits import WireLimits
from sidecar.workers.limits import WorkerLimits

_LAST_PORT = 65_535
_NAME = r"^[a-zA-Z0-9_-]{1,64}$"
# The end of a principal may be left open where a part of it begins: after it no other part can be meant.
_PRINCIPAL = re.compile(
    # A subject has parts as well, whatever its issuer ends them with.
    r"jwt:(?:\*|[!\"$-)+-~]+#(?:(?:[ -~]*[:/|])?\*|[ -~]*[ -)+-~]))|"
    r"\*|local:\d+|token:(?:\*|[a-zA-Z0-9_-]+)|mtls:(?:\*|[a-z0-9._-]+)|spiffe://[a-z0-9._-]+/(?:[a-zA-Z0-9._/-]*/)?(?:\*|[a-zA-Z0-9._-]+)"
)
_NO_PRINCIPAL = "a principal is written token:NAME, jwt:ISSUER#SUB, mtls:NAME, spiffe://DOMAIN/PATH, local:UID or *"


_LEAST = {"max_frame_bytes": 4_096, "nesting_depth": 0, "nested_headroom": 0}
"""The smallest values of limits that are not just positive: an outcome has to say why, and none may be wanted."""


def _only_known(kind: type) -> BeforeValidator:
    known = sorted(field.name for field in fields(kind))

    def check(value: Any) -> Any:
        if isinstance(value, Mapping):
            wrong = {name: not_a_setting(name, known) for name in value if name not in known}
            for name, limit in value.items():
                if name in known and (mistake := _mistake_of(name, limit)) is not None:
                    wrong[name] = mistake
            if wrong:
                raise PydanticCustomError(OF_KEYS, "{keys}", {"keys": wrong})
        return value

    return BeforeValidator(check)


def _mistake_of(name: str, limit: Any) -> str | None:
    """What is wrong with a limit, if anything is."""
    is_number = isinstance(limit, int | float) and not isinstance(limit, bool) and limit < math.inf
    least = _LEAST.get(name)
    if least is None:
        return None if is_number and limit > 0 else "must be a positive number"
    return None if is_number and limit >= least else f"must be a number of at least {least:,}"


class _Served(BaseModel):
    """What a listener proves itself with. PEM files."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    certificate: Path
    """The listener's own certificate, followed by those between it and its root."""
    key: Path
    """Its private key, which is this user's alone."""


class Tls(_Served):
    """What the listener for workers proves itself with, and whom it believes."""

    client_ca: Path
    """The authorities whose certificates peers may show. Who shows none is not let in."""


class CallerTls(_Served):
    """What the listener for callers proves itself with, and whom it believes."""

    client_ca: Path | None = None
    """Likewise. None: certificates are not asked for, and it is tokens that say who connects."""


def _names_and_files(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise PydanticCustomError(
            "names_and_files", 'must be a table of callers and their token files, such as { backend = "backend.token" }'
        )
    wrong = {
        str(name): "must be 1 to 64 letters, digits, hyphens and underscores"
        if not re.fullmatch(_NAME, str(name))
        else "must be a path in quotes"
        for name, file in value.items()
        if not re.fullmatch(_NAME, str(name)) or not isinstance(file, str | Path)
    }
    if wrong:
        raise PydanticCustomError(OF_KEYS, "{keys}", {"keys": wrong})
    return value


class Listen(BaseModel):
    """Where to listen, and to whom."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    callers: str | None = None
    """For callers: `unix:/path`, or `host:port`. None: a socket in the state directory."""
    workers: str | None = None
    """For workers, likewise."""
    caller_tokens: Annotated[dict[str, Path], BeforeValidator(_names_and_files)] = {}
    """Callers by TCP on loopback: the name of each, and the file with the token it shows."""
    caller_jwt: Jwt | None = None
    """Callers by TCP that show tokens of an issuer, which say who they are."""
    caller_tls: CallerTls | None = None
    """For callers by TCP: who connects shows a certificate, which says who it is, unless a token does."""
    worker_tls: Tls | None = None
    """For workers by TCP, likewise; they show their tokens beside it."""
    socket_mode: str | None = None
    """The mode of both unix sockets. None: 0660 where a group is named, else 0600."""
    socket_group: str | None = None
    """The group, by name or number, whose members may connect to both."""
    worker_socket_group: str | None = None
    """The group of the workers' socket, where it is another."""
    operators: frozenset[str] = frozenset()
    """Principals that may use the operator's service by TCP, as users of this machine may by the unix socket."""
    reflection: bool = False
    """Whether a TCP listener for callers has reflection, as the unix socket has."""
    insecure: bool = False
    """Whether TCP on loopback is served to whoever connects. For tests alone."""

    @field_validator("socket_group", "worker_socket_group", mode="before")
    @classmethod
    def _may_be_a_number(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("socket_mode", mode="before")
    @classmethod
    def _is_mode(cls, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, str) or value.removeprefix("0").removeprefix("o") not in ("600", "660"):
            raise ValueError(
                'must be "0600", or "0660" for a group as well: to everybody else a socket stays closed; name a group '
                "with socket_group"
            )
        return "0" + value[-3:]

    @field_validator("operators")
    @classmethod
    def _are_principals(cls, names: frozenset[str]) -> frozenset[str]:
        for name in names:
            if "*" in name or not _PRINCIPAL.fullmatch(name):
                raise ValueError(f"has one that is none: {_NO_PRINCIPAL.replace(' or *', '')}")
        return names

    @model_validator(mode="after")
    def _mode_fits_group(self) -> Self:
        if self.socket_mode == "0600" and (self.socket_group or self.worker_socket_group):
            raise ValueError('names a group, which socket_mode "0600" keeps out; leave socket_mode away')
        return self


class Worker(BaseModel):
    """A worker set that may attach."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

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


class Allow(BaseModel):
    """Whom a caller may act for, and with which tools. Several rules for one caller add up."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    principal: str
    """Who connects; one that ends with `*` is all that begin so."""
    tools: frozenset[str] = Field(min_length=1)
    """The tools it may know of and run; `*` at an end stands for any."""
    tenants: frozenset[str] = Field(default=frozenset(("",)), min_length=1)
    """The tenants that its calls may name. The empty text is a call that names none."""
    subjects: frozenset[str] = Field(default=frozenset(("",)), min_length=1)
    """The subjects that they may name, likewise: one that names none is the caller's own."""

    @field_validator("principal")
    @classmethod
    def _is_principal(cls, text: str) -> str:
        if not _PRINCIPAL.fullmatch(text):
            raise ValueError(f"is no principal: {_NO_PRINCIPAL}")
        return text

    @field_validator("tools", "tenants", "subjects")
    @classmethod
    def _are_patterns(cls, words: frozenset[str]) -> frozenset[str]:
        for word in words:
            if "*" in word[:-1]:
                raise ValueError("has a * that is not at an end, where it stands for any text")
        return words


class Limits(BaseModel):
    """Bounds that differ from the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    calls: Annotated[CallLimits, _only_known(CallLimits)] = CallLimits()
    """Of calls."""
    wire: Annotated[WireLimits, _only_known(WireLimits)] = WireLimits()
    """Of streams."""
    workers: Annotated[WorkerLimits, _only_known(WorkerLimits)] = WorkerLimits()
    """Of workers."""
    artifacts: Annotated[ArtifactLimits, _only_known(ArtifactLimits)] = ArtifactLimits()
    """Of artifacts."""
    scopes: Annotated[ScopeLimits, _only_known(ScopeLimits)] = ScopeLimits()
    """Of runs and sessions, and of what tools keep for their ends."""


class Artifacts(BaseModel):
    """The artifact store."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    enabled: bool = True
    """Whether there is one. Without it, tools that want artifacts and all that asks for them are refused."""


class Audit(BaseModel):
    """The record of who did what."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    enabled: bool = True
    """Whether there is one."""
    directory: Path | None = None
    """Where its files are. None: `audit` in the state directory."""
    key_file: Path | None = None
    """The file with the key that it is written with. None: one that is made in the state directory."""
    head_file: Path | None = None
    """Where it is kept how far the log reaches. None: `audit.head` in the state directory."""
    required: bool = False
    """Whether no call is run while it cannot be written. Otherwise entries are lost then, and counted in it later."""
    arguments: bool = False
    """Whether it holds the arguments of calls."""
    results: bool = False
    """Whether it holds their results."""
    segment_bytes: Annotated[int, Field(ge=64 * 1024)] = 64 * 1024 * 1024
    """Where a file of it is closed and the next one begun."""
    segments_kept: Annotated[int, Field(ge=2)] = 16
    """How many files are kept; the oldest goes when there are more."""


class Log(BaseModel):
    """What is logged, to the standard error."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    format: Format | None = None
    """None: text on a terminal, JSON elsewhere."""
    level: Level = "info"
    """The least of what is logged of the sidecar and its workers; of libraries it is warnings."""


class Metrics(BaseModel):
    """Where `/metrics` is served for Prometheus."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

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
        if not self.public and not is_loopback(self.place[0]):
            raise ValueError(
                f"listens off loopback, at {self.listen}, where anyone could read; listen on 127.0.0.1, or set public "
                "if that is meant"
            )
        return self


class Tracing(BaseModel):
    """Where the spans of calls go, over OTLP by gRPC."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

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
