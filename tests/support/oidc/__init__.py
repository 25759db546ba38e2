"""A real OAuth 2 provider in a process of its own, and a person with a browser."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx2
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CLIENT_SECRET = "canary-client-secret-that-is-long-enough"

_MOST_STEPS = 12
_FORM = re.compile(r"<form[^>]*action=\"([^\"]+)\"(.*?)</form>", re.DOTALL)
_HIDDEN = re.compile(r"<input[^>]*type=\"hidden\"[^>]*name=\"([^\"]+)\"[^>]*value=\"([^\"]*)\"")


def needed() -> None:
    """Skips a test where this machine lacks what it runs on. CI has that."""
    if shutil.which("npm") is None:
        if os.environ.get("CI"):
            pytest.fail("CI has no npm")
        pytest.skip("there is no npm on PATH")


RESOURCE = "https://pillion.example"
"""Whom tokens are for that are signed ones."""


class Provider:
    """The provider, while its process runs."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.issuer = self._line()
        """Its address."""

    @property
    def jwks_url(self) -> str:
        """Where its public keys are."""
        return f"{self.issuer}/jwks"

    def rotate(self) -> None:
        """Has it sign with new keys. Those before are still published."""
        self._say("rotate")

    def withdraw(self) -> None:
        """Has it publish its newest keys alone."""
        self._say("withdraw")

    def kill(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()

    def token(self, client: str = "by-form", scope: str = "read") -> str:
        """A signed token of a client's own, with this scope; of `brief` one that lives for 4 s."""
        form = {"grant_type": "client_credentials", "resource": RESOURCE, "scope": scope}
        form |= {"client_id": client, "client_secret": CLIENT_SECRET}
        with httpx2.Client(trust_env=False) as http:
            token: str = http.post(f"{self.issuer}/token", data=form).raise_for_status().json()["access_token"]
            return token

    def _say(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        assert self._line() == command

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def provider() -> Iterator[str]:
    """Its address. It is installed if it is not, and runs inside the block."""
    with started() as one:
        yield one.issuer


@contextmanager
def started() -> Iterator[Provider]:
    """The provider. It is installed if it is not, and runs inside the block."""
    environment = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    }
    subprocess.run(["make", "--silent", "oidc"], cwd=ROOT, env=environment, check=True)
    command = ("node", str(HERE / "provider.mjs"))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield Provider(process)
        finally:
            process.kill()


def running() -> Iterator[str]:
    """For fixtures: the address of a provider. Where it cannot run a test is skipped, but for in CI."""
    needed()
    with provider() as issuer:
        yield issuer


async def authorize(url: str, who: str, *, redirect: str, declines: bool = False) -> str:
    """What a person with a browser does at the address: logs in, authorises or declines. Answers where to go back."""
    async with httpx2.AsyncClient(follow_redirects=False, trust_env=False) as browser:
        response = await browser.get(url)
        for _ in range(_MOST_STEPS):
            if response.is_redirect:
                target = urljoin(str(response.url), response.headers["location"])
                if target.startswith(redirect):
                    return target
                response = await browser.get(target)
                continue
            page = response.text
            form = _FORM.search(page)
            assert form is not None, f"{response.status_code} {urlsplit(str(response.url)).path}: {page[:500]}"
            if declines:
                response = await browser.get(f"{response.url}/abort")
                continue
            fields = {name: unescape(value) for name, value in _HIDDEN.findall(form[2])}
            if fields.get("prompt") == "login":
                fields |= {"login": who, "password": "any"}
            response = await browser.post(urljoin(str(response.url), unescape(form[1])), data=fields)
    raise AssertionError("the provider sends the person in circles")
