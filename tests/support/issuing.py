"""Settings of credentials for sidecars in tests, and what is stored for them."""

import base64
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from sidecar._gen.pillion.v1.context_pb2 import Credential, Identity
from sidecar._gen.pillion.v1.execute_pb2 import CompleteConsentRequest, CompleteConsentResponse
from sidecar._gen.pillion.v1.outbound_pb2 import CredentialGet, OutboundRequest
from sidecar._gen.pillion.v1.tool_pb2 import CredentialMode, CredentialNeed, ToolDescriptor
from sidecar.credentials.logins import Login, LoginKey
from sidecar.credentials.making import Maker
from sidecar.credentials.port import Mode, Need, Request
from sidecar.credentials.secret import Secret
from sidecar.credentials.settings import AuthorizationCodeSection, CredentialSettings
from sidecar.scope import Scope, local_principal, scope_of
from tests.support import StartHost
from tests.support.host import SocketHost
from tests.support.oauth_stand_in import CLIENT, CLIENT_SECRET
from tests.support.tools import tool
from tests.support.worker import WorkerPeer

USER = CredentialMode.CREDENTIAL_MODE_USER
MACHINE = CredentialMode.CREDENTIAL_MODE_MACHINE
REDIRECT = "https://app.example.com/authorised"
KEY = base64.b64encode(bytes(range(32))).decode()
VARIABLES = {"CREDENTIALS_KEY": KEY, "CLIENT_SECRET": CLIENT_SECRET}
"""What a sidecar with these settings is started with."""
KEYED = '[credentials]\nkey_variable = "CREDENTIALS_KEY"\n'


def section(service: str, provider: str, **settings: object) -> str:
    """A `[[credential]]`."""
    told = {"service": service, "provider": provider, **settings}
    return "[[credential]]\n" + "".join(f"{name} = {_toml(value)}\n" for name, value in told.items())


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    return json.dumps(value)


def client_credentials(service: str, url: str, **settings: object) -> str:
    """A section of the sidecar's own tokens, from a provider at this address."""
    return section(service, "client_credentials", **_client(url), **settings)


def authorization_code(service: str, url: str, **settings: object) -> str:
    """A section of tokens that people authorise, likewise."""
    pages = {"authorization_url": f"{url}/authorize", "redirect_url": REDIRECT}
    return section(service, "authorization_code", **_client(url), **pages, **settings)


def _client(url: str) -> dict[str, object]:
    return {"client_id": CLIENT, "client_secret_variable": "CLIENT_SECRET", "token_url": f"{url}/token"}


def set_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the variables for a sidecar in this process."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def subject(identity: Identity | None = None) -> Scope:
    """Whom a call of this user is for."""
    return scope_of(local_principal(os.getuid()), identity, None, None, "test")


def settings_of(text: str) -> CredentialSettings:
    """These settings, as they are read."""
    return CredentialSettings.model_validate(tomllib.loads(text))


def store_login(state_dir: Path, service: str, token: str, refresh: str, *, expires_at: float) -> None:
    """Stores a login as an authorisation would: for a subject that nobody named. Blocks."""
    logins = Maker(settings_of(KEYED), state_dir, VARIABLES).logins()
    key = LoginKey(subject().owner, Need(service, (), Mode.USER))
    logins.put(Login(key, Secret(token), Secret(refresh), expires_at))


def begin_consent(text: str, service: str, identity: Identity | None = None, *, redirect: str = REDIRECT) -> str:
    """The address at which this user's subject authorises, as the sidecar with these settings would tell its caller."""
    settings = settings_of(text)
    (found,) = [each for each in settings.credential if each.service == service]
    assert isinstance(found, AuthorizationCodeSection)
    provider = Maker(settings, Path(), VARIABLES).authorization_code(found)
    request = Request(subject(identity), local_principal(os.getuid()), Need(service, (), Mode.USER))
    return provider.begin(request, redirect).url.reveal()


def get(service: str, number: int = 1, **fields: object) -> OutboundRequest:
    """A tool's request for a credential."""
    asked = CredentialGet(service=service, **fields)  # type: ignore[arg-type]  # the fields of the message
    return OutboundRequest(request_id=number, credential_get=asked)


def value_of(credential: Credential) -> str:
    """The secret of a bearer token, key or password."""
    kind = credential.WhichOneof("kind")
    assert kind in ("bearer", "api_key", "basic"), credential
    found = {"bearer": credential.bearer.token, "api_key": credential.api_key.key, "basic": credential.basic.password}
    return found[kind]


def needing(*needs: str, **fields: Any) -> ToolDescriptor:
    """The tool `echo`, which needs these: `service` or `service:user`."""
    declared = []
    for each in needs:
        service, _, mode = each.partition(":")
        declared.append(CredentialNeed(service=service, mode=USER if mode == "user" else MACHINE))
    return tool("echo", needs=declared, **fields)


async def started(start_host: StartHost, credentials: str, *granted: str, **limits: Any) -> SocketHost:
    """A sidecar with these credentials, of which the worker set `main` may be issued those that are granted."""
    host = await start_host(credentials=credentials, granted={"main": granted}, **limits)
    assert isinstance(host, SocketHost)
    return host


async def pushed(worker: WorkerPeer, service: str) -> str:
    """What the next call was issued for a service. The call ends."""
    run = await worker.next_invoke()
    await worker.result(run.call)
    return value_of(run.context.credentials.services[service])


async def complete_consent(host: SocketHost, service: str, query: str, **fields: Any) -> str | None:
    """Completes an authorisation, by a bare stub; the status and sentence of a refusal, if it is one."""
    async with grpc.aio.insecure_channel(host.callers_at) as channel:
        method = channel.unary_unary(
            "/pillion.v1.ToolHostService/CompleteConsent",
            CompleteConsentRequest.SerializeToString,
            CompleteConsentResponse.FromString,
        )
        try:
            await method(CompleteConsentRequest(service=service, callback_query=query, **fields))
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
    return None
