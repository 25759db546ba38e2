"""The sections about credentials: every mistake is named with its place, and what is right makes its provider."""

from pathlib import Path

import pytest

from sidecar.config import ConfigRefused, Settings, read
from sidecar.credentials.authorization_code import AuthorizationCodeProvider
from sidecar.credentials.client_credentials import ClientCredentialsProvider
from sidecar.credentials.environment import EnvironmentProvider
from sidecar.credentials.grant import CredentialGrant
from sidecar.credentials.making import CredentialsRefused, Maker, lacking, unknown_grants
from sidecar.credentials.mounted import MountedProvider
from sidecar.credentials.sealed_file import SealedFileProvider
from sidecar.credentials.settings import EnvironmentSection
from sidecar.credentials.static import StaticProvider
from sidecar.credentials.token_exchange import TokenExchangeProvider
from sidecar.credentials.vault import VaultProvider

OAUTH = 'client_id = "me"\nclient_secret_variable = "S"\ntoken_url = "https://as.example/token"\n'
CODE = OAUTH + 'authorization_url = "https://as.example/auth"\nredirect_url = "https://me.example/back"\n'
VAULT = 'address = "https://vault.example:8200"\npath = "team/x"\ntoken_file = "vault-token"\n'
KEY = '[credentials]\nkey_file = "key"\n'


def section(provider: str, rest: str = "", service: str = "x") -> str:
    return f'[[credential]]\nservice = "{service}"\nprovider = "{provider}"\n{rest}'


def good(directory: Path, text: str) -> Settings:
    file = directory / "pillion.toml"
    file.write_text(text)
    return read(file, {"HOME": "/home/someone"})


def mistakes(directory: Path, text: str) -> list[str]:
    file = directory / "pillion.toml"
    file.write_text(text)
    with pytest.raises(ConfigRefused) as refused:
        read(file, {"HOME": "/home/someone"})
    return [line.removeprefix(f"{file}:").strip() for line in str(refused.value).splitlines()]


ALL = (
    KEY
    + section("environment", 'variable = "X"\n', "a")
    + section("environment", 'kind = "basic"\nusername = "me"\nvariable = "X"\n', "b")
    + section("environment", 'kind = "basic"\nvariables = { username = "U", password = "P" }\n', "c")
    + section("environment", 'kind = "headers"\nvariables = { "x-one" = "X" }\n', "d")
    + section("environment", 'kind = "api_key"\nheader = "x-key"\nvariable = "X"\n', "e")
    + section("mounted", 'directory = "mount"\n', "f")
    + section("mounted", 'kind = "basic"\ndirectory = "mount"\nfiles = { username = "u", password = "p" }\n', "g")
    + section("encrypted_file", "", "h")
    + section("static", 'values = { token = "canary" }\ninsecure = true\n', "i")
    + section("client_credentials", OAUTH + 'scopes = ["a", "b:c"]\nparameters = { audience = "y" }\n', "j")
    + section("authorization_code", CODE, "k")
    + section("authorization_code", CODE.replace('client_secret_variable = "S"\n', ""), "l")
    + section("token_exchange", OAUTH + 'subject_token_file = "workload"\n', "m")
    + section("token_exchange", OAUTH.replace("https", "http").replace("as.example", "127.0.0.1:80"), "n")
    + section("vault", VAULT, "o")
    + section("vault", VAULT + 'kind = "custom"\nfields = { a = "b" }\nremember = 5\n', "p")
)
KINDS = [
    *[EnvironmentProvider] * 5,
    *[MountedProvider] * 2,
    SealedFileProvider,
    StaticProvider,
    ClientCredentialsProvider,
    *[AuthorizationCodeProvider] * 2,
    *[TokenExchangeProvider] * 2,
    *[VaultProvider] * 2,
]


def test_every_section_makes_its_provider(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("00" * 32)
    settings = good(tmp_path, ALL)
    made = Maker(settings, tmp_path, {}).made()
    assert [type(provider) for provider in made.providers.values()] == KINDS
    assert len(made.resources) == 1
    assert "canary" not in repr(settings)


def test_paths_are_from_where_the_file_is(tmp_path: Path) -> None:
    settings = good(tmp_path, ALL)
    assert settings.credentials.key_file == tmp_path / "key"
    paths = {
        name: value
        for section in settings.credential
        for name, value in section
        if isinstance(value, Path) and not str(value).startswith(str(tmp_path))
    }
    assert paths == {}


def test_nothing_is_needed(tmp_path: Path) -> None:
    settings = good(tmp_path, "")
    assert settings.credential == ()
    made = Maker(settings, tmp_path, {}).made()
    assert (made.providers, made.resources) == ({}, ())
    assert list(Maker(settings, tmp_path, {}).mistakes()) == []


MISTAKES = {
    section("environment"): "1: credential[1] needs a variable, or variables by field, and not both.",
    section("environment", 'variable = "X"\nvariables = { token = "Y" }\n'): (
        "1: credential[1] needs a variable, or variables by field, and not both."
    ),
    section("environment", 'kind = "headers"\nvariable = "X"\n'): (
        "1: credential[1] of kind headers takes variables by name."
    ),
    section("environment", 'kind = "basic"\nvariable = "X"\n'): (
        "1: credential[1] of kind basic takes username and password in variables."
    ),
    section("environment", 'kind = "colour"\nvariable = "X"\n'): (
        "4: credential[1].kind must be 'bearer', 'api_key', 'basic', 'headers' or 'custom'."
    ),
    section("environment", 'varable = "X"\n'): "4: credential[1].varable is not a setting; did you mean variable?",
    section("environment", 'variable = "X"\nheader = "x-key"\n'): (
        "1: credential[1] has a header, which only kind api_key has."
    ),
    section("environment", 'variable = "X"\nkind = "api_key"\nheader = "a b"\n'): (
        "1: credential[1] has a header whose name no header has; use letters, digits and hyphens."
    ),
    section("environment", 'variable = "X"\nusername = "me"\n'): (
        "1: credential[1] has a username, which only kind basic has."
    ),
    section("environment", "variable = 7\n"): "4: credential[1].variable must be a text in quotes.",
    section("environment", 'variable = "X"\n', "a b"): (
        "2: credential[1].service must be 1 to 128 letters, digits, dots, hyphens and underscores."
    ),
    section("environment", 'variable = "X"\n') * 2: "5: credential[2] is the second for x; leave one.",
    section("colour"): (
        "3: credential[1].provider must be one of authorization_code, client_credentials, encrypted_file, environment, "
        "mounted, static, token_exchange, vault."
    ),
    '[[credential]]\nservice = "x"\n': (
        "1: credential[1].provider must be one of authorization_code, client_credentials, encrypted_file, environment, "
        "mounted, static, token_exchange, vault."
    ),
    '[[credential]]\nprovider = "encrypted_file"\n' + KEY: "1: credential[1].service is required and not there.",
    section("mounted"): "1: credential[1].directory is required and not there.",
    section("mounted", 'directory = "d"\nfiles = { password = "p" }\n'): (
        "1: credential[1] of kind bearer takes token in files."
    ),
    section("encrypted_file"): (
        "1: credential[1] needs a key to seal with; name a key_file or a key_variable in [credentials]."
    ),
    section("authorization_code", CODE): (
        "1: credential[1] needs a key to seal with; name a key_file or a key_variable in [credentials]."
    ),
    section("static", 'values = { token = "canary" }\n'): (
        "1: credential[1] has its secret in the settings, for whoever reads them; use another provider, or set "
        "insecure for a test."
    ),
    section("static", "insecure = true\nvalues = { token = 7 }\n"): (
        "5: credential[1].values has a mistake at token: it must be a text in quotes."
    ),
    section("static", 'insecure = true\nvalues = { tokn = "canary" }\n'): (
        "1: credential[1] of kind bearer takes token in values."
    ),
    section("client_credentials", OAUTH.replace('client_secret_variable = "S"\n', "")): (
        "1: credential[1] needs a client_secret_file or a client_secret_variable."
    ),
    section("client_credentials", OAUTH + 'client_secret_file = "s"\n'): (
        "1: credential[1] needs a client_secret_file or a client_secret_variable, and not both."
    ),
    section("client_credentials", OAUTH.replace("https:", "http:")): (
        "6: credential[1].token_url would send secrets unencrypted; use https."
    ),
    section("client_credentials", OAUTH.replace("https://", "https://canary:canary@")): (
        "6: credential[1].token_url is no https address without user and fragment."
    ),
    section("client_credentials", OAUTH.replace("https://as.example/token", "canary")): (
        "6: credential[1].token_url is no https address without user and fragment."
    ),
    section("client_credentials", OAUTH.replace("as.example", "[canary")): (
        "6: credential[1].token_url is no https address without user and fragment."
    ),
    section("client_credentials", OAUTH + 'scopes = ["a b"]\n'): (
        "7: credential[1].scopes must be scopes of OAuth, without spaces and quotes."
    ),
    section("client_credentials", OAUTH + 'client_auth = "jwt"\n'): (
        "7: credential[1].client_auth must be 'basic' or 'post'."
    ),
    KEY + section("authorization_code", CODE.replace("https://me.example/back", "back")): (
        "10: credential[1].redirect_url is no address; write that which the provider knows for this client."
    ),
    section("vault", VAULT.replace('token_file = "vault-token"\n', "")): (
        "1: credential[1] needs a token_file or a token_variable, and not both."
    ),
    section("vault", VAULT.replace("team/x", "../x")): (
        "1: credential[1] has a path with an empty or dotted part in it."
    ),
    section("vault", VAULT + "remember = 0\n"): "7: credential[1].remember must be greater than 0.",
    "[credentials]\nkey_file = 'a'\nkey_variable = 'B'\n": (
        "1: credentials needs a key_file or a key_variable, and not both."
    ),
    "[credentials]\nkey = 'canary'\n": (
        "2: credentials.key is not a setting; here there are ca_file, file, key_file, key_variable."
    ),
    "credential = 7\n": '1: credential must be a list, such as ["a", "b"].',
    "credential = [7]\n": "1: credential[1] must be a table.",
    '[[worker]]\nname = "w"\ntoken_file = "t"\ncredentials = ["x:root"]\n': (
        "4: worker[1].credentials[1] must end in :machine or :user, or in no mode, which is machine."
    ),
    '[[worker]]\nname = "w"\ntoken_file = "t"\ncredentials = ["a b"]\n': (
        "4: worker[1].credentials[1] must be names of services, such as github or github:user."
    ),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str) -> None:
    said = mistakes(tmp_path, text)
    assert said == [MISTAKES[text]]
    assert "canary" not in said[0]


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    text = section("environment", 'varable = "X"\nkind = "colour"\n') + section("vault", "path = 7\n")
    said = mistakes(tmp_path, text)
    assert [line.split(" ")[1] for line in said] == [
        "credential[1].varable",
        "credential[1].kind",
        "credential[2].address",
        "credential[2].path",
    ]


def test_variables_of_the_environment_win(tmp_path: Path) -> None:
    (tmp_path / "pillion.toml").write_text(KEY)
    settings = read(
        tmp_path / "pillion.toml", {"HOME": "/home/someone", "PILLION__CREDENTIALS__KEY_FILE": "/elsewhere/key"}
    )
    assert settings.credentials.key_file == Path("/elsewhere/key")


# --- what `pillion check` looks at besides


def found(directory: Path, text: str, **environment: str) -> list[str]:
    return list(Maker(good(directory, text), directory / "state", environment).mistakes())


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    text = (
        section("environment", 'variable = "X"\n', "a")
        + section("mounted", 'directory = "mount"\n', "b")
        + section("client_credentials", OAUTH, "c")
        + section("vault", VAULT, "d")
        + section("token_exchange", OAUTH + 'subject_token_file = "workload"\n', "e")
        + "[credentials]\nca_file = 'ca.pem'\n"
    )
    assert found(tmp_path, text) == [
        f"The file of authorities {tmp_path}/ca.pem is not there; name another ca_file in [credentials].",
        "The credential for a is not set: start the sidecar with X.",
        f"The directory of the credential for b, {tmp_path}/mount, is not there; mount it.",
        "The client secret for c is not in the variable S; put it there as one line of text.",
        f"The token for d is not in {tmp_path}/vault-token; put it there as one line of text.",
        "The client secret for e is not in the variable S; put it there as one line of text.",
        f"The subject token for e is not in {tmp_path}/workload; put it there as one line of text.",
    ]
    (tmp_path / "mount").mkdir()
    for name in ("vault-token", "workload", "ca.pem"):
        (tmp_path / name).write_text("text\n")
    assert found(tmp_path, text, X="x", S="s") == []


@pytest.mark.parametrize("content", [None, b"", b"two\nlines", b"\xff", b"\x00"])
def test_what_is_no_secret_in_a_file_is_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "vault-token").write_bytes(content)
    (said,) = found(tmp_path, section("vault", VAULT))
    assert said.startswith("The token for x is not in ")


def test_a_key_that_is_none_is_named(tmp_path: Path) -> None:
    (said,) = found(tmp_path, KEY + section("encrypted_file"))
    assert said.startswith(f"{tmp_path}/key cannot be read, No such file or directory; make one with: head -c 32 ")
    (said,) = found(tmp_path, "[credentials]\nkey_variable = 'K'\n" + section("encrypted_file"), K="canary")
    assert said.startswith("The variable K holds no key of 32 bytes in base64; make one with: ")
    with pytest.raises(CredentialsRefused, match="cannot be read"):
        Maker(good(tmp_path, KEY + section("encrypted_file")), tmp_path, {}).made()


def test_a_file_that_another_key_sealed_is_named(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("00" * 32)
    settings = good(tmp_path, KEY + section("encrypted_file"))
    Maker(settings, tmp_path / "state", {}).sealed_file()._change(lambda _: [])
    (tmp_path / "state" / "credentials.sealed").write_bytes(b"PILLSEAL\x01" + bytes(60))
    (said,) = Maker(settings, tmp_path / "state", {}).mistakes()
    assert "was sealed with another key" in said


def test_what_may_not_be_meant_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("00" * 32)
    (tmp_path / "key").chmod(0o644)
    text = KEY + section("static", 'values = { token = "canary" }\ninsecure = true\n')
    warnings = list(Maker(good(tmp_path, text), tmp_path, {}).warnings())
    assert warnings == [
        f"the key {tmp_path}/key can be read by other users; close it with: chmod 600 {tmp_path}/key",
        "the credential for x is in the settings, which is for tests alone.",
    ]
    (tmp_path / "key").chmod(0o600)
    assert list(Maker(good(tmp_path, KEY), tmp_path, {}).warnings()) == []


def test_a_grant_of_what_is_not_there_is_named(tmp_path: Path) -> None:
    settings = good(tmp_path, section("environment", 'variable = "X"\n'))
    grants = [CredentialGrant.of("good", ("x", "*:user")), CredentialGrant.of("bad", ("x", "y", "z:user"))]
    assert unknown_grants(settings, grants) == [
        (
            "Worker bad is granted credentials for y, z, for which there is no [[credential]]; add one, or take the "
            "grant away."
        )
    ]


def test_a_package_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.credentials.making.find_spec", lambda _: None)
    assert lacking(good(tmp_path, section("environment", 'variable = "X"\n'))) == []
    assert len(lacking(good(tmp_path, KEY + section("authorization_code", CODE)))) == 2
    (said,) = found(tmp_path, KEY + section("encrypted_file"))
    assert said == (
        "[[credential]] needs cryptography, which is not installed: pip install 'pillion-sidecar[credentials]'."
    )
    with pytest.raises(CredentialsRefused, match="httpx2"):
        Maker(good(tmp_path, section("client_credentials", OAUTH)), tmp_path, {}).made()


def test_sections_are_values(tmp_path: Path) -> None:
    one, other = good(tmp_path, ALL).credential, good(tmp_path, ALL).credential
    assert one == other
    assert isinstance(one[0], EnvironmentSection)
