"""The comments of the protos say what they owe: of a field what it means unset, of a frame when it is legal."""

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc  # type: ignore[import-untyped]  # it ships without types

ROOT = Path(__file__).resolve().parents[2]
PROTOS = ROOT / "proto"

_TELLS_UNSET = re.compile(r"\b(unset|empty|required|always set|exactly one|stamped)\b|\b0: ", re.IGNORECASE)
_TELLS_OF_A_FRAME = ("Direction: ", "Legal: ", "Must follow: ")


@pytest.fixture(scope="module")
def protos(tmp_path_factory: pytest.TempPathFactory) -> list[FileDescriptorProto]:
    """All files, with their comments."""
    target = tmp_path_factory.mktemp("protos") / "all"
    names = sorted(map(str, (PROTOS / "pillion").rglob("*.proto")))
    well_known = str(files("grpc_tools") / "_proto")
    options = (f"-I{PROTOS}", f"-I{well_known}", "--include_source_info", f"--descriptor_set_out={target}")
    assert protoc.main(["protoc", *options, *names]) == 0
    return list(FileDescriptorSet.FromString(target.read_bytes()).file)


def messages(
    file: FileDescriptorProto,
) -> Iterator[tuple[tuple[int, ...], DescriptorProto]]:
    """All messages of a file and their places in it, nested ones too, but for those of maps."""
    waiting: list[tuple[tuple[int, ...], DescriptorProto]] = [
        ((4, number), message) for number, message in enumerate(file.message_type)
    ]
    while waiting:
        place, message = waiting.pop()
        yield place, message
        waiting += [
            ((*place, 3, number), nested)
            for number, nested in enumerate(message.nested_type)
            if not nested.options.map_entry
        ]


def comments(file: FileDescriptorProto) -> dict[tuple[int, ...], str]:
    return {
        tuple(location.path): " ".join(location.leading_comments.split()) for location in file.source_code_info.location
    }


def test_every_field_says_what_it_means_unset(protos: list[FileDescriptorProto]) -> None:
    silent = []
    for file in protos:
        told = comments(file)
        for place, message in messages(file):
            for number, field in enumerate(message.field):
                # Of the fields of a oneof just one is set, which each may be.
                if field.HasField("oneof_index") and not field.proto3_optional:
                    continue
                text = told[*place, 2, number]
                if not _TELLS_UNSET.search(text):
                    silent.append(f"{file.name}: {message.name}.{field.name}: {text}")
    assert not silent, "\n".join(silent)


def test_every_frame_says_its_direction_when_it_is_legal_and_what_must_follow(
    protos: list[FileDescriptorProto],
) -> None:
    told = {message.name: comments(file)[place] for file in protos for place, message in messages(file)}
    (frame,) = [message for file in protos for _, message in messages(file) if message.name == "Frame"]
    bodies = [field.type_name.rpartition(".")[2] for field in frame.field if field.HasField("oneof_index")]
    assert len(bodies) > 30
    lacking = [(body, word) for body in bodies for word in _TELLS_OF_A_FRAME if word not in told[body]]
    assert not lacking


def test_nothing_is_exempt_from_the_linter() -> None:
    assert "disallow_comment_ignores: true" in (PROTOS / "buf.yaml").read_text()
    for path in (PROTOS / "buf.yaml", *PROTOS.rglob("*.proto")):
        assert not re.search(r"buf:lint:ignore|^ *(except|ignore|ignore_only):", path.read_text(), re.MULTILINE), path
