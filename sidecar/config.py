"""Settings: a TOML file, then the environment, then flags; checked whole before anything starts."""

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict, ValidationError

from sidecar.credentials.settings import CredentialSettings, anchor
from sidecar.doors.address import UNIX
from sidecar.jwt_section import Jwt
from sidecar.mistakes import Lines, Mistake, Place, mistakes_of
from sidecar.sections import Allow, Artifacts, Audit, CallerTls, Limits, Listen, Log, Metrics, Tls, Tracing, Worker

__all__ = (
    "Allow",
    "Artifacts",
    "Audit",
    "CallerTls",
    "ConfigRefused",
    "Jwt",
    "Layer",
    "Limits",
    "Listen",
    "Log",
    "Metrics",
    "Settings",
    "Tls",
    "Tracing",
    "Worker",
    "default_state_dir",
    "read",
)

_VARIABLE = "PILLION__"
_PATHS = ("state_dir", "token_file", "directory", "key_file", "head_file")
_FILES = {
    "caller_jwt": ("jwks_file", "ca_file"),
    "caller_tls": ("certificate", "key", "client_ca"),
    "worker_tls": ("certificate", "key", "client_ca"),
}
"""The paths in the tables of [listen]."""


class ConfigRefused(ValueError):
    """The settings cannot be used. The text says what to change, a line for each mistake."""

    def __init__(self, *mistakes: Mistake | str) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = mistakes


class Settings(CredentialSettings):
    """All settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state_dir: Path
    """Where what must last is kept. Private to this user."""
    listen: Listen = Listen()
    allow: tuple[Allow, ...] = ()
    """Who may do what, beside the user of the callers' unix socket, who may do everything."""
    worker: tuple[Worker, ...] = ()
    limits: Limits = Limits()
    artifacts: Artifacts = Artifacts()
    audit: Audit = Audit()
    log: Log = Log()
    metrics: Metrics | None = None
    """None: not served."""
    tracing: Tracing | None = None
    """None: no spans; a caller's trace context is passed on as it came."""

    @property
    def callers(self) -> str:
        """Where callers find the sidecar."""
        return self.listen.callers or f"{UNIX}{self.state_dir.absolute() / 'callers.sock'}"

    @property
    def workers(self) -> str:
        """Where workers find it."""
        return self.listen.workers or f"{UNIX}{self.state_dir.absolute() / 'workers.sock'}"


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
            merged = _parsed(text)
        except ValueError as error:
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
    across = [
        Mistake(sources.get(place, source), lines.of(place) if place not in sources else None, place, message)
        for place, message in _mistakes_across(settings)
    ]
    if across:
        raise ConfigRefused(*across)
    return settings


def _mistakes_across(settings: Settings) -> Iterator[tuple[Place, str]]:
    """What is wrong between settings each of which may be right."""
    names = [worker.name for worker in settings.worker]
    for number, name in enumerate(names):
        if name in names[:number]:
            yield ("worker", number, "name"), "is there twice"
    tls = settings.listen.caller_tls
    if tls is not None and tls.client_ca is None and settings.listen.caller_jwt is None:
        yield ("listen", "caller_tls", "client_ca"), "is required where there is no [listen.caller_jwt]"
    callers = settings.listen.caller_tokens
    for number, rule in enumerate(settings.allow):
        kind, _, name = rule.principal.partition(":")
        if kind == "token" and name not in ("*", *callers):
            close = difflib.get_close_matches(name, callers, n=1)
            known = f"did you mean token:{close[0]}?" if close else "name its token file in listen.caller_tokens"
            yield ("allow", number, "principal"), f"is no caller with a token; {known}"
        if kind == "jwt":
            jwt = settings.listen.caller_jwt
            if jwt is None:
                yield ("allow", number, "principal"), "is of an issuer of tokens; name it in [listen.caller_jwt]"
            elif name != "*" and name.partition("#")[0] != jwt.issuer:
                yield ("allow", number, "principal"), f"is of another issuer; here it is jwt:{jwt.issuer}#SUB"


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


def _parsed(text: str) -> dict[str, Any]:
    """What a text says as TOML.

    :raises ValueError: if it is not TOML, or more than can be read; the text says which.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise ValueError("It nests too deep") from None
    except ValueError:
        # The one that Python has for a number, which says how to allow it.
        raise ValueError("It has a number of over 4,300 digits") from None


def _value(text: str) -> Any:
    """A variable's text as TOML has it, else as text."""
    try:
        return _parsed(f"value = {text}")["value"]
    except ValueError:
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
    tables = [values, values.get("audit"), *(workers if isinstance(workers, list) else ())]
    for table in filter(lambda table: isinstance(table, dict), tables):
        if "command" in table:
            table.setdefault("directory", str(directory))
        for key in _PATHS:
            if isinstance(table.get(key), str):
                table[key] = str(directory / table[key])
    listen = values.get("listen")
    if isinstance(listen, dict):
        for key in ("callers", "workers"):
            place = listen.get(key)
            if isinstance(place, str) and place.startswith(UNIX):
                listen[key] = f"{UNIX}{directory / place.removeprefix(UNIX)}"
        for section in ("caller_tokens", *_FILES):
            files = listen.get(section)
            if isinstance(files, dict):
                keys = _FILES.get(section, files)
                files |= {key: str(directory / file) for key in keys if isinstance(file := files.get(key), str)}
