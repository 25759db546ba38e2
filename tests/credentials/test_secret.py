"""A secret is seen nowhere but where it is revealed."""

import copy
import dataclasses
import io
import json
import logging
import pickle
import pprint
import traceback
from typing import Any

import pytest

from sidecar.credentials.port import ApiKey, AuthorizationRequired, Basic, Bearer, Credential, Custom, Headers, Issued
from sidecar.credentials.secret import Secret

VALUE = "canary-5f0c1d"
KINDS: list[Credential] = [
    Bearer(Secret(VALUE)),
    ApiKey(Secret(VALUE), "x-key"),
    Basic("someone", Secret(VALUE)),
    Headers({"authorization": Secret(VALUE)}),
    Custom({"key": Secret(VALUE.encode())}),
]


@pytest.fixture(params=[VALUE, VALUE.encode()], ids=["text", "bytes"])
def secret(request: pytest.FixtureRequest) -> Secret[str] | Secret[bytes]:
    return Secret(request.param)


def test_it_is_revealed(secret: Secret[str] | Secret[bytes]) -> None:
    assert secret.reveal() in (VALUE, VALUE.encode())


def test_no_rendering_shows_it(secret: Secret[str] | Secret[bytes]) -> None:
    lines = io.StringIO()
    logger = logging.getLogger("tests.secret")
    logger.addHandler(logging.StreamHandler(lines))
    logger.error("issued %s %r %10s", secret, secret, secret)
    logger.error("issued %s", {"secret": secret})
    renderings = [
        str(secret),
        repr(secret),
        f"{secret}{secret!r}{secret!s}{secret!a}{secret:>40}",
        "%s %r" % (secret, secret),  # noqa: UP031  # this way too
        pprint.pformat([secret]),
        lines.getvalue(),
        repr(dir(secret)),
    ]
    assert lines.getvalue().count("withheld") == 4
    assert not any(VALUE in rendering for rendering in renderings)


@pytest.mark.parametrize("credential", KINDS, ids=lambda credential: credential.kind)
def test_no_rendering_of_what_is_around_it_shows_it(credential: Credential) -> None:
    for thing in (credential, Issued(credential), AuthorizationRequired("service", Secret(VALUE))):
        assert VALUE not in f"{thing} {thing!r} {pprint.pformat(thing)}"
        with pytest.raises(TypeError):
            pickle.dumps(thing)
        with pytest.raises(TypeError):
            copy.deepcopy(thing)
        with pytest.raises(TypeError):
            dataclasses.asdict(thing)
        with pytest.raises(TypeError):
            json.dumps(thing)


def _fail(secret: object) -> None:
    raise ValueError(secret)


def test_no_traceback_shows_it(secret: Secret[str] | Secret[bytes]) -> None:
    with pytest.raises(ValueError, match="withheld") as raised:
        _fail(secret)
    shown = "".join(traceback.TracebackException.from_exception(raised.value, capture_locals=True).format())
    assert "withheld" in shown
    assert VALUE not in shown


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_is_not_pickled(secret: Secret[str] | Secret[bytes], protocol: int) -> None:
    with pytest.raises(TypeError, match="not serialised"):
        pickle.dumps(secret, protocol)


def test_it_is_neither_copied_nor_made_json_nor_hashed_nor_walked_over(secret: Secret[str] | Secret[bytes]) -> None:
    forbidden: tuple[Any, ...] = (copy.copy, copy.deepcopy, json.dumps, hash, vars, iter, len, bytes, int, sorted)
    for use in forbidden:
        with pytest.raises(TypeError):
            use(secret)
    with pytest.raises(TypeError, match="not serialised"):
        secret.__getstate__()
    for use in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not copied"):
            use(secret)


def test_only_an_equal_secret_equals_it() -> None:
    assert Secret(VALUE) == Secret(VALUE)
    assert Secret(VALUE) != Secret(VALUE + "x")
    assert Secret(VALUE) != VALUE
    assert Secret(VALUE) != Secret(VALUE.encode())
    assert Secret("\udc80") == Secret("\udc80")


def test_it_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return True

    monkeypatch.setattr("hmac.compare_digest", compare)
    assert Secret("a") == Secret("b")
    assert len(compared) == 1
