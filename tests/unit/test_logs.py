"""Log lines: one record a line, bounded, with what it belongs to and without a secret."""

import ast
import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.worker_pb2 import Log, LogLevel, Reattach
from sidecar.config import Settings, Worker
from sidecar.credentials.redactor import Redactor
from sidecar.credentials.secret import Secret
from sidecar.launches import grant_of, launch_of
from sidecar.telemetry.logs import Format, JsonLines, TextLines, flush, lost_lines, redacting, set_up
from tests.support import Host, MemoryHost, attach, token_of

ROOT = Path(__file__).resolve().parents[2]
_LONGEST = 65_536


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def loggers() -> Iterator[None]:
    """Puts the loggers that `set_up` touches back as they were."""
    touched = [logging.getLogger(name) for name in (None, "sidecar", "pillion", "grpc._cython.cygrpc")]
    before = [(logger.level, list(logger.handlers)) for logger in touched]
    yield
    for logger, (level, handlers) in zip(touched, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


def record(message: str = "it happened", *arguments: object, exc_info: Any = None, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("sidecar.place", logging.WARNING, __file__, 1, message, arguments, exc_info)
    made.__dict__.update(extra)
    return made


def raised(message: str) -> Any:
    try:
        int(message)
    except ValueError as error:
        error.args = (message,)
        return sys.exc_info()


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    line = JsonLines().format(made)
    assert "\n" not in line
    assert line.isascii()
    assert len(line) <= _LONGEST
    value: dict[str, Any] = json.loads(line)
    return value


def test_json_has_what_the_record_belongs_to_and_its_exception_as_one_field() -> None:
    extra = {"worker": "main", "instance": "ins_1", "execution_id": "exe_1", "fields": {"rows": 3}, "other": "left out"}
    line = as_json(record("%d of %s", 2, "three", exc_info=raised("no\nway"), **extra))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line.pop("time"))
    assert line.pop("exception").endswith("ValueError: no\nway")
    assert line == {
        "level": "warning",
        "logger": "sidecar.place",
        "message": "2 of three",
        "worker": "main",
        "instance": "ins_1",
        "execution_id": "exe_1",
        "fields": {"rows": "3"},
    }


def test_what_a_record_does_not_say_is_left_out() -> None:
    assert as_json(record(execution_id=None, fields={})).keys() == {"time", "level", "logger", "message"}
    assert TextLines(colours=False).format(record(execution_id=None)).endswith("sidecar.place: it happened")


@pytest.mark.parametrize("unit", ["x", "é", "🂡", "\x00", "\n", "\ud800"], ids=ascii)
def test_no_line_is_over_64_kib(unit: str) -> None:
    extra = {
        "worker": unit * 100_000,
        "fields": {f"{number}{unit * 1_000}": unit * 1_000 for number in range(1_000)},
        "exc_info": raised(unit * 100_000),
    }
    line = as_json(record(unit * 1_000_000, **extra))
    assert line["message"].startswith(unit) or unit == "\ud800"
    assert "characters)" in line["message"]
    assert line["exception"]
    for text in TextLines(colours=False).format(record(unit * 1_000_000, **extra)).split("\n"):
        assert len(text) <= _LONGEST
        text.encode()


def test_a_long_traceback_keeps_its_beginning_and_its_end() -> None:
    exception = as_json(record(exc_info=raised("a" * 50_000 + " the end")))["exception"]
    assert exception.startswith("Traceback (most recent call last)")
    assert exception.endswith(" the end")
    assert "characters) …" in exception


def test_text_is_one_line_a_record_and_holds_no_control_character() -> None:
    hostile = "done\n2026-01-01T00:00:00.000Z error   sidecar: forged \x1b[31m\x9b0m \u202e \u2028 \r"
    line = TextLines(colours=False).format(record(hostile, worker="main", fields={"k\n": "v\x1b"}))
    assert "\n" not in line
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", line)
    assert "done\\n2026" in line
    assert line.endswith(" worker=main k\\n=v\\x1b")


def test_a_traceback_in_text_is_indented() -> None:
    first, *rest = TextLines(colours=False).format(record(exc_info=raised("one\x1b\ntwo"))).split("\n")
    assert first.endswith("sidecar.place: it happened")
    assert rest[-1] == "    two"
    assert all(line.startswith("    ") for line in rest)
    assert not any("\x1b" in line for line in rest)


def test_it_is_json_off_a_terminal_and_text_on_one(loggers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    cases: tuple[tuple[io.StringIO, Format | None, bool], ...] = (
        (io.StringIO(), None, True),
        (Terminal(), None, False),
        (io.StringIO(), "text", False),
        (Terminal(), "json", True),
    )
    for stream, form, is_json in cases:
        set_up(stream, form, "info")
        logging.getLogger("sidecar.place").warning("it happened")
        assert stream.getvalue().startswith("{") is is_json
        assert ("\x1b[33m" in stream.getvalue()) is (isinstance(stream, Terminal) and not is_json)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_without_colours_gets_none(
    loggers: None, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    stream = Terminal()
    set_up(stream, None, "info")
    logging.getLogger("sidecar").error("it happened")
    assert "\x1b" not in stream.getvalue()


def test_the_level_is_of_the_sidecar_and_its_workers_and_libraries_warn(loggers: None) -> None:
    stream = io.StringIO()
    set_up(stream, "json", "debug")
    for name in ("sidecar.calls", "pillion.worker", "somebody.else"):
        logging.getLogger(name).debug("a detail")
        logging.getLogger(name).warning("a warning")
    logging.getLogger("grpc._cython.cygrpc").error("a peer left")
    said = [(line["logger"], line["message"]) for line in map(json.loads, stream.getvalue().splitlines())]
    assert said == [
        ("sidecar.calls", "a detail"),
        ("sidecar.calls", "a warning"),
        ("pillion.worker", "a detail"),
        ("pillion.worker", "a warning"),
        ("somebody.else", "a warning"),
    ]
    set_up(stream, "json", "error")
    logging.getLogger("sidecar.calls").warning("not any more")
    assert "not any more" not in stream.getvalue()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_can_be_written_in_any_locale(loggers: None, encoding: str) -> None:
    raw = io.BytesIO()
    set_up(io.TextIOWrapper(raw, encoding, write_through=True), None, "info")
    logging.getLogger("sidecar").info("é 🂡 \udcff")
    assert json.loads(raw.getvalue())["message"] == "é 🂡 \\udcff"


def test_lines_that_cannot_be_written_are_counted_and_told_once_they_can(loggers: None, tmp_path: Path) -> None:
    log = logging.getLogger("sidecar")
    with Path("/dev/full").open("w", encoding="utf-8") as stream, (tmp_path / "log").open("wb") as free:
        set_up(stream, "json", "info")
        for number in range(3):
            log.info("line %d", number)
            flush()
        assert lost_lines() == 3
        os.dup2(free.fileno(), stream.fileno())
        log.info("line %d", 3)
        flush()
        assert lost_lines() == 3
        logging.getLogger().handlers[0].close()
    said = [json.loads(line)["message"] for line in (tmp_path / "log").read_text().splitlines()]
    assert said == ["line 3", "3 log lines were lost: nobody read the log, or its disk is full"]


def test_a_line_longer_than_a_pipe_is_whole_on_one_that_does_not_block(loggers: None) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with open(reading, "rb") as reader, open(writing, "w", encoding="utf-8") as stream:  # noqa: PTH123  # descriptors
        set_up(stream, "text", "info")
        for _ in range(20):
            logging.getLogger("sidecar").info("x" * 8_000)
        lines = [reader.readline() for _ in range(20)]
        logging.getLogger().handlers[0].close()
    assert [line.count(b"x") for line in lines] == [8_000] * 20
    assert all(line.endswith(b"x\n") for line in lines)


async def test_a_line_of_a_worker_says_whose_it_is(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    worker, caller = await attach(host), await host.caller()
    await caller.start()
    invocation = await worker.next_invoke()
    log = Log(level=LogLevel.LOG_LEVEL_WARNING, message="first\nsecond", fields={"rows": "3"})
    await worker.send(Frame(call=invocation.call, log=log), Frame(log=Log(message="of no call")))
    await worker.flush()
    of_call, of_none = (as_json(made) for made in caplog.records if made.name == "pillion.worker")
    welcome = next(frame.welcome for frame in worker.frames[0] if frame.HasField("welcome"))
    assert of_call["message"] == "first\nsecond"
    assert of_call["level"] == "warning"
    assert (of_call["worker"], of_call["instance"]) == ("main", welcome.instance_id)
    assert of_call["execution_id"] == invocation.context.execution_id
    assert of_call["fields"] == {"rows": "3"}
    assert "execution_id" not in of_none


async def test_no_secret_of_an_attachment_is_logged(memory_host: MemoryHost, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    worker = await memory_host.worker()
    secret = (await worker.hello()).reattach_secret
    instance = next(iter(memory_host.catalogue.sets["main"].instances.values()))
    thief = await memory_host.worker()
    await thief.present(reattach=Reattach(instance_id=instance.id, secret="a-wrong-secret"))
    await thief.end()
    stranger = await memory_host.worker()
    await stranger.present(token="a-wrong-token")
    await stranger.end()
    await worker.send_bytes(b"\xff" * 8)
    await worker.flush()
    worker.cut()
    again = await memory_host.worker()
    await again.hello(reattach=Reattach(instance_id=instance.id, secret=secret))
    said = "\n".join(JsonLines().format(made) + repr(made.__dict__) for made in caplog.records)
    assert "attached as" in said
    told = said + repr(instance) + repr(instance.workers) + repr(instance.workers.grant) + repr(memory_host.catalogue)
    for kept in (secret, token_of("main"), "a-wrong-secret", "a-wrong-token"):
        assert kept not in told


def test_no_secret_of_the_settings_is_in_what_they_print(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("a-canary-token")
    started = Worker(name="started", command=("true",), environment={"API_KEY": "a-canary-value"})
    attached = Worker(name="attached", token_file=token_file)
    settings = Settings.model_validate(
        {
            "state_dir": tmp_path,
            "listen": {"callers": "unix:/c", "workers": "unix:/w"},
            "worker": [started.model_dump(exclude_none=True), attached.model_dump(exclude_none=True)],
        }
    )
    launch = launch_of(started, settings)
    assert launch.command.environment["API_KEY"] == "a-canary-value"
    printed = f"{settings!r} {settings} {launch!r} {launch.command!r} {grant_of(attached, settings)!r}"
    assert "a-canary" not in printed


_SECRETIVE = re.compile(
    r"token(?!_file)|secret|hello|welcome|\bframe\b|argument|payload|environment|invocation|outcome"
)


def _log_calls() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted((ROOT / "sidecar").rglob("*.py")):
        if "_gen" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id in ("_log", "_worker_log")
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def test_no_log_call_is_given_a_frame_a_token_or_a_value() -> None:
    calls = dict(_log_calls())
    assert len(calls) > 20
    for where, call in calls.items():
        given = [
            name.id if isinstance(name, ast.Name) else name.attr
            for argument in (*call.args, *(keyword.value for keyword in call.keywords))
            for name in ast.walk(argument)
            if isinstance(name, ast.Name | ast.Attribute)
        ]
        assert not [name for name in given if _SECRETIVE.search(name)], where
        # `log` is given the level first.
        assert any(isinstance(text, ast.Constant) for text in call.args[:2]), f"{where}: the text is not constant"


# --- secrets


@pytest.mark.parametrize("form", ["json", "text"])
def test_guarantee_07_what_the_sidecar_says_itself_is_redacted_before_it_is_cut(loggers: None, form: Format) -> None:
    secret = "canary/of+24=characters."
    redactor = Redactor()
    stream = io.StringIO()
    set_up(stream, form, "info")
    log = logging.getLogger("sidecar.place")
    facts = {"execution_id": f"{'x' * 250}{secret}", "fields": {secret: f"{'y' * 250}{secret}"}}
    with redacting(redactor.redact):
        redactor.remember([Secret(secret)])
        log.warning("%s%s", "x" * 8_180, secret)
        log.error("failed with %s", secret, exc_info=raised(f"no number: {secret}"), extra=facts)
    log.warning("outside it is %s", secret)
    *inside, outside = stream.getvalue().split("outside it is ")
    assert "canary" not in "".join(inside)
    assert "".join(inside).count("[redac") >= 5
    assert secret in outside
