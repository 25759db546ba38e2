"""The documents say what the code and the protos are."""

import re
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest
from google.protobuf.descriptor import EnumDescriptor
from pydantic import BaseModel

from bench.figures import FIGURES
from pillion import errors
from sidecar import cli
from sidecar._gen.pillion.v1 import admin_pb2, artifacts_pb2, attach_pb2, execute_pb2
from sidecar._gen.pillion.v1.call_pb2 import StreamErrorReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, SideEffects
from sidecar._gen.pillion.v1.tool_pb2 import Effects
from sidecar.artifacts import ArtifactLimits
from sidecar.calls.limits import CallLimits
from sidecar.calls.result import _KINDS_OF_TOOLS
from sidecar.calls.state import CallState
from sidecar.cli import call
from sidecar.cli.main import BROKEN_PIPE, UNWRITTEN, USAGE
from sidecar.config import (
    Allow,
    Artifacts,
    Audit,
    CallerTls,
    Jwt,
    Listen,
    Log,
    Metrics,
    Settings,
    Tracing,
    Worker,
    read,
)
from sidecar.credentials.settings import _SECTIONS, CredentialSection, CredentialStores
from sidecar.doors.status import CODES, ENDING_CODES
from sidecar.scope import ScopeLimits
from sidecar.wire.limits import WireLimits
from sidecar.workers.limits import WorkerLimits
from tests.support.documents import ROOT, anchors, blocks, lines, links, table

PROTOCOL = "docs/protocol.md"
README = "README.md"
CONFIGURE = "docs/configure.md"
CALLS, STREAMS = "Frames of a call", "Frames of the stream"
CAUSES = "Cause, invoked, effects"
BODIES = {field.name for field in Frame.DESCRIPTOR.oneofs_by_name["body"].fields}
WAYS = {"caller → sidecar", "sidecar → caller", "sidecar → worker", "worker → sidecar"}
STATES = [state.name for state in CallState]
WORDS_ALONE = {
    "opens",
    "ends",
    "replies",
    "forwards",
    "logs",
    "leaves",
    "late",
    "settles",
    "ignores",
    "sent",
    "never",
    "-",
}
MADE = {"bench/out.json", "demo-output/airports.png"}
"""Files that are named and made by a target, so that a fresh clone has none of them."""
RESERVED = {"output": {"worker → sidecar", "sidecar → caller"}, "input": {"caller → sidecar", "sidecar → worker"}}


def words(enum: EnumDescriptor, prefix: str) -> list[str]:
    """The names of an enum's values, in order, but for the one that says nothing."""
    return [value.name.removeprefix(prefix) for value in enum.values if value.number]


KINDS = words(FailureKind.DESCRIPTOR, "FAILURE_KIND_")


def documents() -> list[str]:
    return [README, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]


# --- the life of a call


def edges() -> set[tuple[str, str]]:
    (diagram,) = blocks(PROTOCOL, "mermaid")
    found = re.findall(r"^ *(\S+) --> (\w+|\[\*\])", diagram.text, re.MULTILINE)
    return set(found)


def test_every_state_of_a_call_is_in_the_diagram_and_in_its_table() -> None:
    drawn = {state for edge in edges() for state in edge} - {"[*]"}
    assert drawn == set(STATES)
    assert [row["State"] for row in table(PROTOCOL, "The life of a call")] == STATES


def test_every_state_can_be_reached_and_left() -> None:
    assert {there for _, there in edges()} == {here for here, _ in edges()}


# --- frames


def declared_ways() -> dict[str, set[str]]:
    """The ways of each body, from the comments of `frame.proto`."""
    proto = (ROOT / "proto/pillion/v1/frame.proto").read_text("utf-8")
    found = re.findall(r"// (.*?): .*\n +\w+ (\w+) = \d+;", proto[proto.index("oneof body") :])
    ways: dict[str, set[str]] = {}
    for said, body in found:
        text = said.lower().replace(" to ", " → ")
        if text == "both ways":
            ways[body] = set(WAYS)
        elif text == "reserved":
            ways[body] = RESERVED[body]
        else:
            ways[body] = set(text.split(", "))
    return ways


def test_every_frame_body_is_in_the_tables_with_each_of_its_ways() -> None:
    declared = declared_ways()
    assert set(declared) == BODIES
    rows = {(row["Frame"], row["Way"]) for heading in (CALLS, STREAMS) for row in table(PROTOCOL, heading)}
    told = {(body, way) for body, way in rows if body != "any other"}
    assert told == {(body, way) for body, ways in declared.items() for way in ways}


@pytest.mark.parametrize("heading", [CALLS, STREAMS])
def test_no_row_of_a_frame_table_is_there_twice_and_the_rest_of_each_way_is_told(heading: str) -> None:
    rows = [(row["Frame"], row["Way"]) for row in table(PROTOCOL, heading)]
    assert len(rows) == len(set(rows))
    assert {way for _, way in rows} == WAYS
    assert {way for frame, way in rows if frame == "any other"} == {"caller → sidecar", "worker → sidecar"}


def test_the_frame_table_has_a_column_for_every_state() -> None:
    assert list(table(PROTOCOL, CALLS)[0]) == ["Frame", "Way", "new", *STATES]


def test_every_cell_of_the_frame_tables_is_a_word_of_the_legend() -> None:
    legend = {row["Word"] for row in table(PROTOCOL, "The words in these tables")}
    for heading in (CALLS, STREAMS):
        for row in table(PROTOCOL, heading):
            for state, cell in row.items():
                if state in ("Frame", "Way"):
                    continue
                word, _, rest = cell.partition(" ")
                assert not rest or rest in BODIES or rest.isupper(), cell
                assert cell in WORDS_ALONE if not rest else any(known.startswith(f"{word} ") for known in legend), cell
                assert rest or cell == "-" or cell in legend, cell


# --- failures


def test_every_kind_has_its_status_and_says_whether_it_may_be_a_tools() -> None:
    rows = table(PROTOCOL, "Kinds")
    assert {row["Kind"]: row["Status"] for row in rows} == {
        FailureKind.Name(kind).removeprefix("FAILURE_KIND_"): code.name for kind, code in CODES.items()
    }
    assert [row["Kind"] for row in rows] == KINDS
    assert {row["Kind"] for row in rows if row["A tool's"] == "yes"} == {
        FailureKind.Name(kind).removeprefix("FAILURE_KIND_") for kind in _KINDS_OF_TOOLS
    }


def test_the_kinds_that_are_said_to_occur_are_those_of_the_causes() -> None:
    of_causes = {row["Kind"] for row in table(PROTOCOL, CAUSES)} - {"TOOL_FAILED"}
    assert {row["Kind"] for row in table(PROTOCOL, "Kinds") if row["Now"] == "yes"} == of_causes


def test_the_causes_use_known_words_and_none_is_decided_twice() -> None:
    names = set(words(Effects.DESCRIPTOR, "EFFECTS_"))
    effects = words(SideEffects.DESCRIPTOR, "SIDE_EFFECTS_")
    seen: set[tuple[str, str, str]] = set()
    for row in table(PROTOCOL, CAUSES):
        held = names if row["Effects"] == "any" else set(row["Effects"].split(", "))
        assert held <= names
        assert row["Kind"] in KINDS
        assert row["Side effects"] in effects
        assert row["Invoked"] in ("yes", "no")
        assert row["Retryable"] in ("yes", "no")
        for effect in held:
            case = (row["Cause"], row["Invoked"], effect)
            assert case not in seen
            seen.add(case)


# --- streams


def test_every_reason_of_a_stream_error_is_told() -> None:
    reasons = words(StreamErrorReason.DESCRIPTOR, "STREAM_ERROR_REASON_")
    assert [row["Reason"] for row in table(PROTOCOL, "What a stream is told")] == reasons


def test_every_ending_of_a_stream_has_its_status() -> None:
    rows = table(PROTOCOL, "Endings")
    assert {row["Ending"]: row["Status"] for row in rows} == {
        reason.name: code.name for reason, code in ENDING_CODES.items()
    }


def test_every_rpc_is_told() -> None:
    files = (execute_pb2, attach_pb2, artifacts_pb2, admin_pb2)
    services = [service for file in files for service in file.DESCRIPTOR.services_by_name.values()]
    methods = [f"{service.name}.{method.name}" for service in services for method in service.methods]
    assert [row["RPC"] for row in table(PROTOCOL, "RPCs")] == methods


# --- guides


def test_every_kind_of_failure_has_its_class_and_its_advice() -> None:
    rows = table("docs/call-a-tool.md", "Failures")
    assert [row["Kind"] for row in rows] == KINDS
    for row in rows:
        raised = getattr(errors, row["Class"])
        assert raised.kind.name == row["Kind"]
        assert row["What to do"]


def test_every_exit_code_of_a_call_is_told() -> None:
    told = {row["Exit code"] for row in table("docs/call-a-tool.md", "From a shell")}
    codes = {0, call.TOOL_ERROR, USAGE, call.PAUSED, call.INTERRUPTED, UNWRITTEN, BROKEN_PIPE}
    assert told == {*map(str, codes), f"{call.FIRST_FAILURE} and more"}
    assert call.FIRST_FAILURE + FailureKind.FAILURE_KIND_TIMEOUT == 20


# --- settings


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("calls", CallLimits),
        ("wire", WireLimits),
        ("workers", WorkerLimits),
        ("artifacts", ArtifactLimits),
        ("scopes", ScopeLimits),
    ],
)
def test_every_limit_is_told_with_its_default(heading: str, kind: type) -> None:
    told = {row["Setting"]: row["Default"].replace(",", "") for row in table(CONFIGURE, f"[limits.{heading}]")}
    defaults = kind()
    assert told == {field.name: f"{getattr(defaults, field.name):.15g}" for field in fields(kind)}


SECTIONS: dict[str, type[BaseModel]] = {
    "[listen]": Listen,
    "[listen.caller_jwt]": Jwt,
    "[listen.caller_tls]": CallerTls,
    "[[allow]]": Allow,
    "[[worker]]": Worker,
    "[credentials]": CredentialStores,
    "[[credential]]": CredentialSection,
    "[log]": Log,
    "[metrics]": Metrics,
    "[artifacts]": Artifacts,
    "[audit]": Audit,
    "[tracing]": Tracing,
}


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_setting_is_told_with_its_default(heading: str) -> None:
    rows = table(CONFIGURE, heading)
    fields_of_section = SECTIONS[heading].model_fields
    assert [row["Setting"] for row in rows] == sorted(fields_of_section, key=[row["Setting"] for row in rows].index)
    for row in rows:
        field = fields_of_section[row["Setting"]]
        assert (row["Default"] == "required") is field.is_required(), row
        if isinstance(field.default, bool):
            assert row["Default"] == str(field.default).lower()
        elif isinstance(field.default, int | float):
            assert row["Default"] == f"{field.default:.10g}"
        assert row["What it is"].endswith(".")


CREDENTIALS = "docs/credentials.md"
SHARED: dict[str, type[CredentialSection]] = {
    "client_credentials": CredentialSection,
    "authorization_code": _SECTIONS["client_credentials"],
}
SHARED |= {"token_exchange": SHARED["authorization_code"]}


@pytest.mark.parametrize("provider", sorted(set(_SECTIONS) - {"encrypted_file"}))
def test_every_setting_of_a_provider_is_told(provider: str) -> None:
    rows = table(CREDENTIALS, provider)
    shared = SHARED.get(provider, CredentialSection).model_fields
    own = {name: field for name, field in _SECTIONS[provider].model_fields.items() if name not in shared}
    assert {row["Setting"] for row in rows} == set(own)
    for row in rows:
        field = own[row["Setting"]]
        assert (row["Default"] == "required") is field.is_required(), row
        if field.default and isinstance(field.default, str | float):
            assert row["Default"] == (field.default if isinstance(field.default, str) else f"{field.default:g}")


def test_every_provider_is_told_with_its_modes() -> None:
    assert {row["Provider"].strip("`") for row in table(CREDENTIALS, "Where it comes from")} == set(_SECTIONS)


def test_every_section_is_told() -> None:
    told = {heading.strip("[]").partition(".")[0] for heading in SECTIONS} | {"limits"}
    assert {row["Setting"] for row in table(CONFIGURE, "Top of the file")} | told == set(Settings.model_fields)


EXAMPLES = [*blocks(CONFIGURE, "toml"), *blocks(CREDENTIALS, "toml")]


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_of_settings_can_be_used(tmp_path: Path, number: int) -> None:
    file = tmp_path / "pillion.toml"
    file.write_text(EXAMPLES[number].text)
    read(file, {"HOME": "/home/someone"})


def test_the_variables_of_commands_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["calls", "--help"])
    helped = capsys.readouterr().out
    flags = set(re.findall(r"^ +(--[a-z-]+) ", helped, re.MULTILINE)) - {"--config", "--json"}
    flags -= {"--watch", "--tool"}
    variables = set(re.findall(r"\$(PILLION_[A-Z_]+)", helped))
    rows = table(CONFIGURE, "Variables of commands")
    assert {(row["Flag"], row["Variable"]) for row in rows} == {
        (flag, f"PILLION_{flag.removeprefix('--').replace('-', '_').upper()}") for flag in flags
    }
    assert {row["Variable"] for row in rows} == variables


def test_the_variables_of_settings_are_told() -> None:
    variables = set(re.findall(r"PILLION__[A-Z_]+", (ROOT / CONFIGURE).read_text("utf-8")))
    environment = {
        "HOME": "/home/someone",
        "PILLION__METRICS__LISTEN": "127.0.0.1:0",
        "PILLION__METRICS__PUBLIC": "true",
    }
    environment |= {"PILLION__LISTEN__CALLERS": "unix:/x", "PILLION__LISTEN__CALLER_TOKENS__BACKEND": "/token"}
    environment |= {"PILLION__LISTEN__OPERATORS": '["token:ops"]'}
    assert variables <= set(environment)
    settings = read(None, environment)
    assert settings.listen.operators == {"token:ops"}
    assert settings.listen.caller_tokens == {"backend": Path("/token")}


# --- guarantees and figures


def test_every_guarantee_is_linked_to_tests_of_it_or_said_to_be_missing() -> None:
    tests = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    rows = table(README, "Guarantees")
    assert [row[""] for row in rows] == [str(number) for number in range(1, 17)]
    for number, row in enumerate(rows, 1):
        name = f"test_guarantee_{number:02}"
        places = {place for place, text in tests.items() if f"def {name}_" in text}
        linked = set(re.findall(rf"\[{name}\]\(([^)]+)\)", row["Tests"]))
        assert linked <= places
        assert linked or (row["Tests"] == "not built yet" and not places), row


def test_every_figure_of_the_benchmark_is_in_the_readme_with_its_bar() -> None:
    rows = table(README, "Figures")
    assert [row["Figure"] for row in rows] == [figure.name for figure in FIGURES]
    for row, figure in zip(rows, FIGURES, strict=True):
        sign = "≥" if figure.at_least is not None else "≤"
        assert row["Bar"] == ("" if figure.bar is None else f"{sign} {figure.bar:g}")
        assert row["What it is"] == figure.meaning
        assert re.fullmatch(r"-|[\d,.]+", row["Value"]), row


# --- all of them


@pytest.mark.parametrize("document", documents())
def test_every_link_leads_somewhere(document: str) -> None:
    for link in links(document):
        assert "://" not in link, "a document refers to what is beside it"
        place, _, anchor = link.partition("#")
        target = (ROOT / document).parent / place if place else ROOT / document
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(str(target.resolve().relative_to(ROOT))), link


@pytest.mark.parametrize("document", documents())
def test_headings_go_down_one_level_at_a_time(document: str) -> None:
    levels = [len(line) - len(line.lstrip("#")) for line in _prose(document) if re.match("#+ ", line)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(there <= here + 1 for here, there in pairwise(levels))


@pytest.mark.parametrize("document", documents())
def test_every_path_that_is_named_exists(document: str) -> None:
    for line in _prose(document):
        for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", line):
            assert path in MADE or (ROOT / path).exists() or (ROOT / "sidecar" / path).exists(), path


def _prose(document: str) -> list[str]:
    kept: list[str] = []
    inside = False
    for line in lines(document):
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            kept.append(line)
    return kept


def test_the_architecture_names_every_room() -> None:
    told = {row["Room"] for row in table("docs/architecture.md", "Rooms")}
    rooms = {f"{path.name}/" for path in (ROOT / "sidecar").iterdir() if (path / "__init__.py").exists()}
    assert rooms - {"_gen/"} <= told
    for room in told:
        assert Path(ROOT, "sidecar", room).exists(), room


@pytest.mark.parametrize(
    ("caller", "most"),
    [
        ("python/examples/bare/caller.py", 40),
        ("go/examples/bare/caller/main.go", 80),
        ("rust/examples/bare/main.rs", 80),
        ("typescript/examples/bare/caller.ts", 80),
    ],
)
def test_a_caller_without_an_sdk_is_short(caller: str, most: int) -> None:
    assert len((ROOT / "clients" / caller).read_text().splitlines()) < most
