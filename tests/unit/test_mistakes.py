"""Settings are read from a file, variables and flags, and every mistake in them is told at once, with its place."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from sidecar.config import ConfigRefused, Layer, Settings, read
from sidecar.mistakes import Lines, dotted

HOME = {"HOME": "/home/someone"}
ALLOW = "[[allow]]\nprincipal = '*'\ntools = ['*']\n"
MODE = (
    'must be "0600", or "0660" for a group as well: to everybody else a socket stays closed; name a group with '
    "socket_group."
)
PRINCIPAL = "a principal is written token:NAME, jwt:ISSUER#SUB, mtls:NAME, spiffe://DOMAIN/PATH, local:UID or *."
JWT = "[listen.caller_jwt]\nissuer = 'https://id.example'\naudience = 'pillion'\njwks_url = 'https://id.example/jwks'\n"
ISSUER = "must be the iss of its tokens, such as https://id.example, without blanks, # and *."
ALGORITHM = "must be 'RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512', 'ES256', 'ES384', 'ES512' or 'EdDSA'."
KNOWN_OF_JWT = (
    "5: listen.caller_jwt.secret is not a setting; here there are algorithms, audience, ca_file, issuer, jwks_file, "
    "jwks_url, leeway, refresh."
)
WORKER = '[[worker]]\nname = "main"\ntoken_file = "main.token"\n'


def mistakes(
    directory: Path, text: str | bytes, environment: Mapping[str, str] = HOME, flags: Layer | None = None
) -> list[str]:
    """What is said of settings that cannot be used, without the name of the file."""
    file = directory / "pillion.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigRefused) as refused:
        read(file, environment, flags)
    return [line.removeprefix(f"{file}:").strip() for line in str(refused.value).splitlines()]


def good(directory: Path, text: str | bytes, environment: Mapping[str, str] = HOME) -> Settings:
    file = directory / "pillion.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(file, environment)


# --- files as editors write them


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_and_either_end_of_line_are_read(tmp_path: Path, end: str, mark: bytes) -> None:
    text = WORKER.replace("\n", end).encode()
    assert [worker.name for worker in good(tmp_path, mark + text).worker] == ["main"]
    (said,) = mistakes(tmp_path, mark + text + f"colour = 1{end}".encode())
    assert said.startswith("4: worker[1].colour is not a setting; here there are command, credentials, directory, ")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (said,) = mistakes(tmp_path, b"# caf\xe9\n")
    assert said == "is not UTF-8 from byte 5 on; save it as UTF-8." or said.endswith(
        "pillion.toml is not UTF-8 from byte 5 on; save it as UTF-8."
    )


def test_a_file_that_is_not_toml_is_told_with_its_line(tmp_path: Path) -> None:
    (said,) = mistakes(tmp_path, "state_dir = 'a'\n[listen\n")
    assert "is not TOML: " in said
    assert "line 2" in said


@pytest.mark.parametrize(
    ("value", "wrong"),
    [("[" * 5_000, "It nests too deep"), ("9" * 5_000, "It has a number of over 4,300 digits")],
    ids=["deep", "long"],
)
def test_a_file_that_is_more_than_can_be_read(tmp_path: Path, value: str, wrong: str) -> None:
    (said,) = mistakes(tmp_path, f"state_dir = {value}")
    assert said.endswith(f"is not TOML: {wrong}.")
    # A variable with it is a text, as everything is that is not TOML.
    with pytest.raises(ConfigRefused):
        read(None, HOME | {"PILLION__METRICS__PUBLIC": value})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigRefused) as refused:
        read(tmp_path / "none.toml", HOME)
    assert str(refused.value) == f"{tmp_path}/none.toml cannot be read: No such file or directory."


def test_no_file_is_needed() -> None:
    settings = read(None, HOME)
    assert settings == Settings(state_dir=Path("/home/someone/.local/state/pillion"))
    assert settings.callers == "unix:/home/someone/.local/state/pillion/callers.sock"


# --- what is wrong, and where


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "colour = 1\n",
            (
                "1: colour is not a setting; here there are allow, artifacts, audit, credential, credentials, limits, "
                "listen, log, metrics, state_dir, tracing, worker."
            ),
        ),
        ("\n# the state\nstat_dir = 'a'\n", "3: stat_dir is not a setting; did you mean state_dir?"),
        ("[listen]\ncaller = 'a'\n", "2: listen.caller is not a setting; did you mean callers?"),
        ("listen.caller = 'a'\n", "1: listen.caller is not a setting; did you mean callers?"),
        ("listen = { caller = 'a' }\n", "1: listen.caller is not a setting; did you mean callers?"),
        (WORKER + "tool = ['a']\n", "4: worker[1].tool is not a setting; did you mean tools?"),
        ("[listen]\ninsecure = 'maybe'\n", "2: listen.insecure must be true or false."),
        ("[listen]\ncallers = 1\n", "2: listen.callers must be a text in quotes."),
        ("state_dir = 1\n", "1: state_dir must be a path in quotes."),
        ("listen = 1\n", "1: listen must be a table."),
        ("worker = 1\n", '1: worker must be a list, such as ["a", "b"].'),
        (WORKER + "tools = 'a'\n", '4: worker[1].tools must be a list, such as ["a", "b"].'),
        (WORKER + "tools = []\n", "4: worker[1].tools must not be empty."),
        (WORKER + "instances = 1.5\n", "4: worker[1].instances must be a whole number."),
        (WORKER + "instances = 0\n", "4: worker[1].instances must be greater than or equal to 1."),
        (WORKER + "environment = 1\n", "4: worker[1].environment must be a table."),
        (WORKER + "environment = { A = 1 }\n", "4: worker[1].environment.A must be a text in quotes."),
        (
            WORKER + "[worker.environment]\nA = 1\n",
            "5: worker[1].environment.A must be a text in quotes.",
        ),
        (
            "[[worker]]\ntoken_file = 'a'\n",
            "1: worker[1].name is required and not there.",
        ),
        (
            WORKER.replace("main", "a b", 1),
            "2: worker[1].name must be 1 to 64 letters, digits, hyphens and underscores.",
        ),
        (
            "[[worker]]\nname = 'main'\n",
            "1: worker[1] name a command for the sidecar to start, or a token_file to attach with, and not both.",
        ),
        (
            WORKER + "command = ['a']\n",
            "1: worker[1] name a command for the sidecar to start, or a token_file to attach with, and not both.",
        ),
        (WORKER * 2, "5: worker[2].name is there twice."),
        ("[limits.calls]\ntimeout = 0\n", "2: limits.calls.timeout must be a positive number."),
        (
            "[limits.wire]\nmax_frame_bytes = true\n",
            "2: limits.wire.max_frame_bytes must be a number of at least 4,096.",
        ),
        ("[limits.calls]\nnesting_depth = -1\n", "2: limits.calls.nesting_depth must be a number of at least 0."),
        ("[limits.workers]\nstrikes = nan\n", "2: limits.workers.strikes must be a positive number."),
        ("[limits.calls]\ntimeout = inf\n", "2: limits.calls.timeout must be a positive number."),
        ("[limits.calls]\ntimeout = '5'\n", "2: limits.calls.timeout must be a positive number."),
        ("[limits.wire]\nmessage_frames = 1.5\n", "2: limits.wire.message_frames must be a whole number."),
        (
            "[listen]\ncaller_tokens = 'backend.token'\n",
            (
                "2: listen.caller_tokens must be a table of callers and their token files, such as "
                '{ backend = "backend.token" }.'
            ),
        ),
        (
            "[listen.caller_tokens]\n'a b' = 'a.token'\n",
            "1: listen.caller_tokens.a b must be 1 to 64 letters, digits, hyphens and underscores.",
        ),
        ("[listen.caller_tokens]\na = 1\n", "2: listen.caller_tokens.a must be a path in quotes."),
        (
            "[listen.caller_tls]\ncertificate = 'a'\nkey = 'b'\n",
            "1: listen.caller_tls.client_ca is required where there is no [listen.caller_jwt].",
        ),
        (JWT.replace("issuer = 'https://id.example'\n", ""), "1: listen.caller_jwt.issuer is required and not there."),
        (JWT.replace("audience = 'pillion'\n", ""), "1: listen.caller_jwt.audience is required and not there."),
        (JWT.replace("https://id.example'\nau", "id example'\nau"), f"2: listen.caller_jwt.issuer {ISSUER}"),
        (JWT.replace("https://id.example'\nau", "https://id.example#a'\nau"), f"2: listen.caller_jwt.issuer {ISSUER}"),
        (JWT.replace("https://id.example'\nau", "https://*'\nau"), f"2: listen.caller_jwt.issuer {ISSUER}"),
        (
            JWT.replace("https://id.example/jwks", "http://id.example/jwks"),
            (
                "4: listen.caller_jwt.jwks_url would have keys come unencrypted, and anybody on the way could add one; "
                "use https."
            ),
        ),
        (
            JWT.replace("https://id.example/jwks", "https://me:secret@id.example/jwks"),
            "4: listen.caller_jwt.jwks_url is no https address without user and fragment.",
        ),
        (
            JWT + "jwks_file = 'jwks.json'\n",
            "1: listen.caller_jwt needs a jwks_url or a jwks_file, and not both.",
        ),
        (
            JWT.replace("jwks_url = 'https://id.example/jwks'\n", ""),
            "1: listen.caller_jwt needs a jwks_url or a jwks_file, and not both.",
        ),
        (
            JWT.replace("jwks_url = 'https://id.example/jwks'", "jwks_file = 'a'\nca_file = 'b'"),
            "1: listen.caller_jwt has a ca_file, which is for a jwks_url.",
        ),
        (JWT + "algorithms = ['HS256']\n", f"5: listen.caller_jwt.algorithms[1] {ALGORITHM}"),
        (JWT + "algorithms = ['RS256', 'none']\n", f"5: listen.caller_jwt.algorithms[2] {ALGORITHM}"),
        (JWT + "algorithms = []\n", "5: listen.caller_jwt.algorithms must not be empty."),
        (JWT + "leeway = 3600\n", "5: listen.caller_jwt.leeway must be less than or equal to 300."),
        (JWT + "refresh = 1\n", "5: listen.caller_jwt.refresh must be greater than or equal to 10."),
        (JWT + "secret = 'a'\n", KNOWN_OF_JWT),
        (
            ALLOW.replace("*", "jwt:https://id.example#ann", 1),
            "2: allow[1].principal is of an issuer of tokens; name it in [listen.caller_jwt].",
        ),
        (
            JWT + ALLOW.replace("*", "jwt:https://id.example/#ann", 1),
            "6: allow[1].principal is of another issuer; here it is jwt:https://id.example#SUB.",
        ),
        (
            JWT + ALLOW.replace("*", "jwt:https://*", 1),
            f"6: allow[1].principal is no principal: {PRINCIPAL}",
        ),
        (
            JWT + ALLOW.replace("*", "jwt:https://id.example#ann*", 1),
            f"6: allow[1].principal is no principal: {PRINCIPAL}",
        ),
        (
            JWT + "[listen]\noperators = ['jwt:https://id.example#*']\n",
            f"6: listen.operators has one that is none: {PRINCIPAL[:-6]}.",
        ),
        ("[listen]\nsocket_mode = '0666'\n", f"2: listen.socket_mode {MODE}"),
        ("[listen]\nsocket_mode = 0o660\n", f"2: listen.socket_mode {MODE}"),
        (
            "[listen]\nsocket_mode = '0600'\nsocket_group = 'a'\n",
            '1: listen names a group, which socket_mode "0600" keeps out; leave socket_mode away.',
        ),
        ("[listen]\noperators = ['a']\n", f"2: listen.operators has one that is none: {PRINCIPAL[:-6]}."),
        (ALLOW.replace("*", "a", 1), f"2: allow[1].principal is no principal: {PRINCIPAL}"),
        (ALLOW.replace("*", "spiffe://a*", 1), f"2: allow[1].principal is no principal: {PRINCIPAL}"),
        (
            ALLOW.replace("*", "token:a", 1),
            "2: allow[1].principal is no caller with a token; name its token file in listen.caller_tokens.",
        ),
        (
            "listen.caller_tokens.backend = 'a'\n" + ALLOW.replace("*", "token:backand", 1),
            "3: allow[1].principal is no caller with a token; did you mean token:backend?",
        ),
        ("[[allow]]\nprincipal = '*'\n", "1: allow[1].tools is required and not there."),
        (ALLOW + "tenant = ['a']\n", "4: allow[1].tenant is not a setting; did you mean tenants?"),
        (ALLOW + "tenants = []\n", "4: allow[1].tenants must not be empty."),
        (
            ALLOW + "subjects = ['a*b']\n",
            "4: allow[1].subjects has a * that is not at an end, where it stands for any text.",
        ),
        ("[limits.wirde]\n", "1: limits.wirde is not a setting; did you mean wire?"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_what_would_do(tmp_path: Path, text: str, said: str) -> None:
    assert mistakes(tmp_path, text) == [said]


def test_a_limit_that_is_not_known_is_told_with_those_that_are(tmp_path: Path) -> None:
    (said,) = mistakes(tmp_path, "[limits.calls]\npatience = 1\n")
    assert said.startswith("2: limits.calls.patience is not a setting; here there are cancel_grace, detach_retention, ")
    (said,) = mistakes(tmp_path, "[limits.calls]\ntime_out = 1\n")
    assert said == "2: limits.calls.time_out is not a setting; did you mean timeout?"


def test_every_mistake_is_told_at_once_in_order_of_lines(tmp_path: Path) -> None:
    text = (
        f"colour = 1\n[listen]\ninsecure = 1.5\n{WORKER}tool = ['a']\n\n"
        "[[worker]]\nname = 'second'\ninstances = 'many'\n[limits.calls]\npatience = 1\n"
    )
    told = mistakes(tmp_path, text)
    assert [line.split(" ")[:2] for line in told] == [
        ["1:", "colour"],
        ["3:", "listen.insecure"],
        ["7:", "worker[1].tool"],
        ["11:", "worker[2].instances"],
        ["13:", "limits.calls.patience"],
    ]


@pytest.mark.parametrize(
    "principal",
    [
        "jwt:*",
        "jwt:https://id.example#*",
        "jwt:https://id.example#ann",
        "jwt:https://id.example#auth0|*",
        "jwt:https://id.example#system:serviceaccount:prod:*",
        "jwt:https://id.example#team/*",
        "jwt:https://id.example#a b",
    ],
)
def test_rules_for_callers_with_tokens_of_an_issuer(tmp_path: Path, principal: str) -> None:
    (rule,) = good(tmp_path, JWT + ALLOW.replace("*", principal, 1)).allow
    assert rule.principal == principal


# --- variables and flags


def test_a_variable_wins_over_the_file_and_a_flag_over_both(tmp_path: Path) -> None:
    file = tmp_path / "pillion.toml"
    file.write_text("state_dir = 'of-the-file'\n[listen]\ncallers = 'unix:of-the-file'\nworkers = 'unix:of-the-file'\n")
    environment = HOME | {"PILLION__LISTEN__CALLERS": "unix:/variable", "PILLION__LISTEN__WORKERS": "unix:/variable"}
    flags = Layer({"listen": {"callers": "unix:/flag"}}, {("listen", "callers"): "--callers"})
    settings = read(file, environment, flags)
    assert settings.listen.callers == "unix:/flag"
    assert settings.listen.workers == "unix:/variable"
    assert settings.state_dir == tmp_path / "of-the-file"


@pytest.mark.parametrize(("text", "value"), [("30", 30), ("0.5", 0.5), ("1_000", 1000)])
def test_a_variable_is_read_as_in_the_file(tmp_path: Path, text: str, value: float) -> None:
    assert good(tmp_path, "", HOME | {"PILLION__LIMITS__CALLS__TIMEOUT": text}).limits.calls.timeout == value


def test_a_variable_that_is_not_toml_is_a_text(tmp_path: Path) -> None:
    settings = good(tmp_path, "", {"PILLION__STATE_DIR": "/a place/of = mine", "PILLION__LISTEN__INSECURE": "true"})
    assert settings.state_dir == Path("/a place/of = mine")
    assert settings.listen.insecure


def test_what_a_cluster_makes_for_a_service_of_this_name_harms_nothing(tmp_path: Path) -> None:
    cluster = {
        "PILLION_PORT": "tcp://10.0.0.1:80",
        "PILLION_SERVICE_HOST": "10.0.0.1",
        "PILLION_PORT_80_TCP_ADDR": "10.0.0.1",
        "PILLION": "1",
    }
    assert good(tmp_path, "", HOME | cluster) == good(tmp_path, "", HOME)


def test_a_mistake_in_a_variable_or_a_flag_is_told_by_its_name(tmp_path: Path) -> None:
    environment = HOME | {"PILLION__LISTEN__CALLER": "a", "PILLION__LISTEN__INSECURE": "perhaps"}
    flags = Layer({"listen": {"callers": 1}}, {("listen", "callers"): "--callers"})
    assert sorted(mistakes(tmp_path, "[listen]\ninsecure = true\n", environment, flags)) == [
        "--callers: listen.callers must be a text in quotes.",
        "PILLION__LISTEN__CALLER: listen.caller is not a setting; did you mean callers?",
        "PILLION__LISTEN__INSECURE: listen.insecure must be true or false.",
    ]


@pytest.mark.parametrize("turned", [False, True])
def test_variables_for_a_table_and_for_a_part_of_it_do_not_fail(tmp_path: Path, turned: bool) -> None:
    pair = [("PILLION__LISTEN", "unix:/a"), ("PILLION__LISTEN__CALLERS", "unix:/a")]
    environment = HOME | dict(reversed(pair) if turned else pair)
    file = tmp_path / "pillion.toml"
    file.write_text("")
    if turned:
        with pytest.raises(ConfigRefused, match="PILLION__LISTEN: listen must be a table"):
            read(file, environment)
    else:
        assert read(file, environment).listen.callers == "unix:/a"


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"XDG_STATE_HOME": "/state", "HOME": "/home/me"}, "/state/pillion"),
        ({"XDG_STATE_HOME": "", "HOME": "/home/me"}, "/home/me/.local/state/pillion"),
        ({"PILLION__STATE_DIR": "/mine"}, "/mine"),
    ],
)
def test_the_state_has_a_place(tmp_path: Path, environment: dict[str, str], place: str) -> None:
    assert good(tmp_path, "", environment).state_dir == Path(place)


def test_without_a_home_it_says_what_to_set(tmp_path: Path) -> None:
    (said,) = mistakes(tmp_path, "", {})
    assert said == "There is no HOME to keep state in; set state_dir, or PILLION__STATE_DIR."


# --- paths


def test_paths_of_a_file_are_meant_from_where_it_is(tmp_path: Path) -> None:
    settings = good(
        tmp_path,
        "state_dir = 'state'\n[listen]\ncallers = 'unix:run/callers.sock'\nworkers = 'unix:/run/workers.sock'\n"
        + WORKER
        + "[[worker]]\nname = 'a'\ncommand = ['a']\n[[worker]]\nname = 'b'\ncommand = ['b']\ndirectory = 'sub'\n",
    )
    assert settings.state_dir == tmp_path / "state"
    assert settings.callers == f"unix:{tmp_path}/run/callers.sock"
    assert settings.workers == "unix:/run/workers.sock"
    attached, started, elsewhere = settings.worker
    assert attached.token_file == tmp_path / "main.token"
    assert started.directory == tmp_path
    assert elsewhere.directory == tmp_path / "sub"


# --- lines


def test_lines_are_those_of_keys_and_tables() -> None:
    lines = Lines(
        'a = 1\n"b" = 2  # [c]\n[c]\nd.e = 1\n[c.f]\ng = 1\n[[h]]\ni = 1\n[[h]]  # again\ni = 2\n[h.j]\nk = 1\n'
    )
    assert [lines.of(place) for place in (("a",), ("b",), ("c",), ("c", "d"), ("c", "f", "g"))] == [1, 2, 3, 4, 6]
    assert [lines.of(place) for place in (("h", 0, "i"), ("h", 1), ("h", 1, "i"), ("h", 1, "j", "k"))] == [8, 9, 10, 12]
    assert lines.of(("h", 1, "nothing")) == 9
    assert lines.of(("nothing",)) is None


def test_a_place_is_written_as_people_count() -> None:
    assert dotted(("worker", 1, "tools", 0)) == "worker[2].tools[1]"
