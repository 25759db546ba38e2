"""Credentials as the protocol says them."""

from collections.abc import Iterable

from sidecar._gen.pillion.v1.context_pb2 import Credential as CredentialMessage
from sidecar._gen.pillion.v1.outbound_pb2 import CredentialAnswer, ReplyErrorCode
from sidecar._gen.pillion.v1.tool_pb2 import CredentialMode, CredentialNeed
from sidecar.credentials.grant import SERVICE
from sidecar.credentials.port import (
    Answer,
    ApiKey,
    Basic,
    Bearer,
    CredentialDenied,
    CredentialFailed,
    CredentialUnconfigured,
    Headers,
    Issued,
    Mode,
    Need,
    ProviderDown,
)

_MODES = {
    CredentialMode.CREDENTIAL_MODE_UNSPECIFIED: Mode.MACHINE,
    CredentialMode.CREDENTIAL_MODE_MACHINE: Mode.MACHINE,
    CredentialMode.CREDENTIAL_MODE_USER: Mode.USER,
}
_MOST_SCOPES = 64
_SCOPE_BYTES = 256


class NeedRefused(ValueError):
    """A credential is asked for in a way that has no answer. The text is a sentence that says what would do."""


def need_of(service: str, scopes: Iterable[str], mode: "CredentialMode.ValueType") -> Need:
    """What is needed, as a tool declares it or asks for it.

    :raises NeedRefused: if that is not what a service, scopes and a mode look like.
    """
    named = tuple(scopes)
    if not SERVICE.fullmatch(service):
        raise NeedRefused("A service is named by 1 to 128 letters, digits, dots, hyphens and underscores.")
    if mode not in _MODES:
        raise NeedRefused("The mode of a credential is MACHINE or USER.")
    if len(named) > _MOST_SCOPES or any(len(scope.encode()) > _SCOPE_BYTES for scope in named):
        raise NeedRefused(f"A credential has at most {_MOST_SCOPES} scopes of at most {_SCOPE_BYTES} bytes.")
    return Need(service, named, _MODES[mode])


def needs_of(declared: Iterable[CredentialNeed]) -> tuple[Need, ...]:
    """What a tool declares that it needs.

    :raises NeedRefused: if that is not what needs look like.
    """
    return tuple(need_of(need.service, need.scopes, need.mode) for need in declared)


def message_of(issued: Issued, now: float) -> CredentialMessage:
    """The message that hands a credential to a tool. Secret. `now`: in seconds of the wall clock."""
    message = CredentialMessage()
    credential = issued.credential
    if isinstance(credential, Bearer):
        message.bearer.token = credential.token.reveal()
    elif isinstance(credential, ApiKey):
        message.api_key.key = credential.key.reveal()
        if credential.header is not None:
            message.api_key.header = credential.header
    elif isinstance(credential, Basic):
        message.basic.username = credential.username
        message.basic.password = credential.password.reveal()
    elif isinstance(credential, Headers):
        message.headers.headers.update({name: secret.reveal() for name, secret in credential.headers.items()})
    else:
        message.custom.values.update({name: secret.reveal() for name, secret in credential.values.items()})
    if issued.expires_at is not None:
        message.expires_in.FromNanoseconds(max(int((issued.expires_at - now) * 1e9), 0))
    return message


def answer_of(answer: Answer, now: float) -> CredentialAnswer:
    """The answer to a tool that asked. It is not told where to authorise."""
    message = CredentialAnswer()
    if isinstance(answer, Issued):
        message.issued.CopyFrom(message_of(answer, now))
    else:
        message.authorization_required.service = answer.service
    return message


def code_of(failed: CredentialFailed) -> "ReplyErrorCode.ValueType":
    """The code by which a tool that asked is refused."""
    if isinstance(failed, CredentialUnconfigured):
        return ReplyErrorCode.REPLY_ERROR_CODE_CREDENTIAL_UNCONFIGURED
    if isinstance(failed, CredentialDenied):
        return ReplyErrorCode.REPLY_ERROR_CODE_DENIED
    if isinstance(failed, ProviderDown):
        return ReplyErrorCode.REPLY_ERROR_CODE_CREDENTIAL_PROVIDER_DOWN
    return ReplyErrorCode.REPLY_ERROR_CODE_CREDENTIAL_REFUSED
