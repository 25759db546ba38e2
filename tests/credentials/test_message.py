"""Every kind of credential reaches the SDK as it was issued, and nobody is told where to authorise."""

import pytest

from pillion._worker.credentials import ApiKey as SdkApiKey
from pillion._worker.credentials import Basic as SdkBasic
from pillion._worker.credentials import Bearer as SdkBearer
from pillion._worker.credentials import Credential as SdkCredential
from pillion._worker.credentials import CredentialMode as SdkMode
from pillion._worker.credentials import Custom as SdkCustom
from pillion._worker.credentials import Headers as SdkHeaders
from pillion._worker.credentials import read_credential
from sidecar._gen.pillion.v1.outbound_pb2 import ReplyErrorCode
from sidecar._gen.pillion.v1.tool_pb2 import CredentialMode, CredentialNeed
from sidecar.credentials.message import answer_of, code_of, message_of, needs_of
from sidecar.credentials.port import (
    ApiKey,
    AuthorizationRequired,
    Basic,
    Bearer,
    Credential,
    CredentialDenied,
    CredentialFailed,
    CredentialRefused,
    CredentialUnconfigured,
    Custom,
    Headers,
    Issued,
    Mode,
    Need,
    ProviderDown,
)
from sidecar.credentials.secret import Secret

NOW = 1_000.0


def read(issued: Issued) -> SdkCredential:
    message = message_of(issued, NOW)
    # The SDK has stubs of its own.
    from pillion._gen.pillion.v1 import context_pb2

    return read_credential(context_pb2.Credential.FromString(message.SerializeToString()))


@pytest.mark.parametrize(("expires_at", "expires_in"), [(None, None), (NOW + 90.5, 90.5), (NOW - 5, 0.0)])
def test_a_bearer_token_with_its_life(expires_at: float | None, expires_in: float | None) -> None:
    credential = read(Issued(Bearer(Secret("token")), expires_at))
    assert isinstance(credential, SdkBearer)
    assert (credential.token.reveal(), credential.expires_in) == ("token", expires_in)


@pytest.mark.parametrize(("header", "seen"), [(None, "x-api-key"), ("x-other", "x-other")])
def test_an_api_key_with_its_header(header: str | None, seen: str) -> None:
    credential = read(Issued(ApiKey(Secret("key"), header)))
    assert isinstance(credential, SdkApiKey)
    assert (credential.key.reveal(), credential.header) == ("key", seen)


def test_the_other_kinds() -> None:
    basic = read(Issued(Basic("me", Secret("pass"))))
    assert isinstance(basic, SdkBasic)
    assert (basic.username, basic.password.reveal()) == ("me", "pass")
    headers = read(Issued(Headers({"x-a": Secret("1"), "x-b": Secret("2")})))
    assert isinstance(headers, SdkHeaders)
    assert {name: value.reveal() for name, value in headers.headers.items()} == {"x-a": "1", "x-b": "2"}
    custom = read(Issued(Custom({"key": Secret(b"\x00\xff")})))
    assert isinstance(custom, SdkCustom)
    assert {name: value.reveal() for name, value in custom.values.items()} == {"key": b"\x00\xff"}


@pytest.mark.parametrize("credential", [Bearer(Secret("a")), Basic("me", Secret("a"))], ids=["bearer", "basic"])
def test_an_answer_that_issues(credential: Credential) -> None:
    issued = Issued(credential, NOW + 1)
    assert answer_of(issued, NOW).issued == message_of(issued, NOW)


def test_an_answer_that_needs_a_person_says_not_where() -> None:
    answer = answer_of(AuthorizationRequired("mail", Secret("https://canary/")), NOW)
    assert answer.authorization_required.service == "mail"
    assert b"canary" not in answer.SerializeToString()


def test_needs_are_read_and_no_mode_is_the_machine() -> None:
    user = CredentialMode.CREDENTIAL_MODE_USER
    declared = [CredentialNeed(service="a"), CredentialNeed(service="b", scopes=["x", "y"], mode=user)]
    assert needs_of(declared) == (Need("a"), Need("b", ("x", "y"), Mode.USER))
    assert {mode.name: mode.value for mode in Mode} == {mode.name: mode.value for mode in SdkMode}


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (CredentialUnconfigured, ReplyErrorCode.REPLY_ERROR_CODE_CREDENTIAL_UNCONFIGURED),
        (CredentialDenied, ReplyErrorCode.REPLY_ERROR_CODE_DENIED),
        (CredentialRefused, ReplyErrorCode.REPLY_ERROR_CODE_CREDENTIAL_REFUSED),
        (ProviderDown, ReplyErrorCode.REPLY_ERROR_CODE_CREDENTIAL_PROVIDER_DOWN),
    ],
)
def test_each_failure_has_its_code(failure: type[CredentialFailed], code: "ReplyErrorCode.ValueType") -> None:
    assert code_of(failure("It failed.")) == code
