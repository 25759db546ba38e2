"""The listeners that the settings ask for, as the doors take them. What is not safe is refused, with what would be."""

import grp
import os
import ssl
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from sidecar.config import CallerTls, ConfigRefused, Jwt, Listen, Settings, Tls
from sidecar.doors.access import Access, CertificateAccess, InsecureAccess, LocalAccess, TokenAccess
from sidecar.doors.address import UNIX, Address, is_loopback
from sidecar.doors.certificates import Certificates, Pem
from sidecar.doors.listeners import Listener
from sidecar.policy import Rule, StaticPolicy
from sidecar.private_files import private_bytes, tokens_in, trusted_bytes
from sidecar.scope import local_principal

# The kernel's limit is 108 with the zero that ends it.
_PATH_BYTES = 107
_LAST_PORT = 65_535
_FOR_GROUP = 0o660
_TRIES = 3
_OF_JWT = ("jwt", "cryptography", "httpx2")
"""The packages that tokens of an issuer need."""


def callers_listener(settings: Settings) -> Listener:
    """The listener for callers.

    :raises ConfigRefused: if it cannot be had, or would not be safe.
    """
    listen = settings.listen
    place = settings.callers
    if place.startswith(UNIX):
        for name in ("caller_tokens", "caller_jwt", "caller_tls", "operators", "reflection"):
            if getattr(listen, name):
                raise ConfigRefused(
                    f"listen.{name} is for TCP, and callers connect by {place}; leave it away, or name an address such "
                    "as 127.0.0.1:7443 as listen.callers."
                )
        return Listener(_socket(place, listen, listen.socket_group), LocalAccess())
    return _by_tcp(place, listen)


def _by_tcp(place: str, listen: Listen) -> Listener:
    host, jwt, tls = _host_of(place), listen.caller_jwt, listen.caller_tls
    # Beside the tokens of an issuer certificates prove the listener alone, or callers once more.
    known_by = ("caller_tokens", "caller_tls" if jwt is None else "caller_jwt", "insecure")
    ways = [name for name in known_by if getattr(listen, name)]
    if not is_loopback(host) and tls is None:
        danger = "anyone could connect" if jwt is None else "tokens could be read on their way"
        raise ConfigRefused(
            f"{place} is not on loopback, where {danger}: give it certificates by [listen.caller_tls], or "
            "use 127.0.0.1 or a unix socket."
        )
    if not ways:
        raise ConfigRefused(
            f"{place} would serve every user of this machine: name the token file of each caller in "
            "[listen.caller_tokens], give it certificates by [listen.caller_tls], or use a unix socket, or set "
            "listen.insecure for a test."
        )
    if len(ways) > 1:
        raise ConfigRefused(f"Callers by TCP are known in one way, and there are {' and '.join(ways)}; keep one.")
    if tls is not None and tls.client_ca is None and jwt is None:
        raise ConfigRefused(
            "Nothing says who callers are: name the authorities of their certificates as listen.caller_tls.client_ca, "
            "or the issuer of their tokens in [listen.caller_jwt]."
        )
    address = Address(place, None)
    certificates = Certificates(_pem(tls, "listen.caller_tls")) if tls is not None else None
    if jwt is not None:
        return Listener(address, _by_jwt(jwt), certificates)
    if certificates is not None:
        return Listener(address, CertificateAccess(), certificates)
    if listen.caller_tokens:
        return Listener(address, TokenAccess(_tokens(listen)))
    return Listener(address, InsecureAccess())


def _by_jwt(section: Jwt) -> Access:
    """How tokens of an issuer are checked. What that needs is imported only where there are some."""
    if not all(map(find_spec, _OF_JWT)):
        raise ConfigRefused(
            "[listen.caller_jwt] needs PyJWT, which is not installed: pip install 'pillion-sidecar[jwt]'."
        )
    from sidecar.doors.issuer_keys import IssuerKeys
    from sidecar.doors.jwks import FileKeys, KeySource, KeysRefused, keys_in
    from sidecar.doors.jwt import JwtAccess, TokenRules

    source: KeySource
    if section.jwks_file is not None:
        document = trusted_bytes(section.jwks_file, "The file of listen.caller_jwt.jwks_file")
        try:
            source = FileKeys(keys_in(document, section.algorithms))
        except KeysRefused as refused:
            raise ConfigRefused(
                f"listen.caller_jwt.jwks_file, {section.jwks_file}, cannot be used: {refused}."
            ) from None
    else:
        if section.ca_file is not None and not _has_certificate(
            trusted_bytes(section.ca_file, "The file of listen.caller_jwt.ca_file")
        ):
            raise ConfigRefused(f"listen.caller_jwt.ca_file, {section.ca_file}, holds no certificate in PEM; name one.")
        source = IssuerKeys(
            section.jwks_url or "", section.algorithms, ca_file=section.ca_file, refresh=section.refresh
        )
    return JwtAccess(TokenRules(section.issuer, section.audience, section.algorithms, section.leeway), source)


def workers_listener(settings: Settings) -> Listener:
    """The listener for workers. Each shows the token of its worker set, whatever it comes by.

    :raises ConfigRefused: as `callers_listener` does.
    """
    listen = settings.listen
    place = settings.workers
    if place.startswith(UNIX):
        if listen.worker_tls is not None:
            raise ConfigRefused(
                f"listen.worker_tls is for TCP, and workers connect by {place}; leave it away, or name an address such "
                "as 0.0.0.0:7444 as listen.workers."
            )
        return Listener(_socket(place, listen, listen.worker_socket_group or listen.socket_group), LocalAccess())
    host = _host_of(place)
    if listen.worker_tls is not None:
        pem = _pem(listen.worker_tls, "listen.worker_tls")
        return Listener(Address(place, None), CertificateAccess(), Certificates(pem))
    if not is_loopback(host):
        raise ConfigRefused(
            f"{place} is not on loopback, where a worker's token could be read on its way: give it certificates by "
            "[listen.worker_tls], or use 127.0.0.1 or a unix socket."
        )
    return Listener(Address(place, None), InsecureAccess())


def policy_of(settings: Settings) -> StaticPolicy:
    """Who may do what: the rules of the settings, and everything for who needs none."""
    unrestricted = [local_principal(os.getuid()).name]
    if settings.listen.insecure:
        unrestricted.append(InsecureAccess.principal.name)
    return StaticPolicy(unrestricted, rules_of(settings))


def rules_of(settings: Settings) -> list[Rule]:
    """The rules of the settings."""
    return [Rule(rule.principal, rule.tools, rule.tenants, rule.subjects) for rule in settings.allow]


def fixed_parts(listen: Listen) -> object:
    """What of it cannot change while the sidecar listens: all but who is known, by which files."""
    return listen.model_copy(
        update={
            "caller_tokens": bool(listen.caller_tokens),
            "caller_jwt": listen.caller_jwt is not None,
            "caller_tls": (listen.caller_tls is not None, getattr(listen.caller_tls, "client_ca", None) is not None),
            "worker_tls": listen.worker_tls is not None,
            "operators": None,
        }
    )


def files_read(settings: Settings) -> Iterator[Path]:
    """The files that are read again when one of them changes."""
    listen = settings.listen
    yield from listen.caller_tokens.values()
    for section in (listen.caller_jwt, listen.caller_tls, listen.worker_tls):
        if section is not None:
            yield from (file for _, file in section if isinstance(file, Path))
    yield from (worker.token_file for worker in settings.worker if worker.token_file is not None)


def workers_group(settings: Settings) -> int | None:
    """The group that may connect to the workers' unix socket; `None`: none may, or there is no such socket."""
    listen = settings.listen
    if is_by_tcp(settings.workers):
        return None
    return _socket(settings.workers, listen, listen.worker_socket_group or listen.socket_group).group


def is_by_tcp(place: str) -> bool:
    """Whether a listener's address is one of TCP."""
    return not place.startswith(UNIX)


def _host_of(place: str) -> str:
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal() or (":" in host and not host.startswith("[")):
        raise ConfigRefused(f"{place} is no address; write unix:/path/to/socket or 127.0.0.1:port or [::1]:port.")
    if int(port) > _LAST_PORT:
        raise ConfigRefused(f"{place} has no port that there could be; the last is {_LAST_PORT}.")
    return host


def _socket(place: str, listen: Listen, group: str | None) -> Address:
    path = Path(place.removeprefix(UNIX)).absolute()
    if len(str(path).encode(errors="surrogateescape")) > _PATH_BYTES:
        raise ConfigRefused(f"The socket path {path} is over the {_PATH_BYTES} bytes that a socket may have.")
    text = f"{UNIX}{path}"
    if group is not None:
        return Address(text, path, _FOR_GROUP, _group(group))
    if listen.socket_mode is not None and int(listen.socket_mode, 8) == _FOR_GROUP:
        return Address(text, path, _FOR_GROUP, os.getegid())
    return Address(text, path)


def _group(name: str) -> int:
    try:
        number = int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigRefused(f"There is no group {name} for a socket; name one there is, or its number.") from None
    if os.getuid() and number not in (os.getegid(), *os.getgroups()):
        raise ConfigRefused(
            f"This user is not in the group {name}, and so cannot give a socket to it; name one it is in."
        )
    return number


def _tokens(listen: Listen) -> dict[str, list[str]]:
    tokens = {name: tokens_in(path, f"The token file of caller {name}") for name, path in listen.caller_tokens.items()}
    holders: dict[str, str] = {}
    for name, many in tokens.items():
        for token in many:
            other = holders.setdefault(token, name)
            if other != name:
                raise ConfigRefused(f"The callers {other} and {name} have the same token; give each one of its own.")
    return tokens


def _pem(tls: Tls | CallerTls, section: str) -> Pem:
    """What the files of a section hold, and gRPC can use."""
    for _ in range(_TRIES):
        pem = _read(tls, section)
        _check(tls, pem, section)
        if _read(tls, section) == pem:
            # What was looked at, by way of the files, is what was read.
            return pem
    raise ConfigRefused(f"The files of {section} change while they are read; try again.")


def _read(tls: Tls | CallerTls, section: str) -> Pem:
    key = private_bytes(tls.key, f"The key of {section}")
    read: list[bytes | None] = []
    for name, path in (("certificate", tls.certificate), ("client_ca", tls.client_ca)):
        try:
            read.append(path.read_bytes() if path is not None else None)
        except OSError as error:
            raise ConfigRefused(f"{section}.{name}, {path}, cannot be read: {error.strerror}.") from None
    chain, client_ca = read
    return Pem(key, chain or b"", client_ca)


class _Encrypted(Exception):
    """A key takes a password."""


def _no_password() -> NoReturn:
    raise _Encrypted


def _check(tls: Tls | CallerTls, pem: Pem, section: str) -> None:
    for name, path, data in (
        ("certificate", tls.certificate, pem.chain),
        ("client_ca", tls.client_ca, pem.client_ca),
    ):
        if data is not None and not _has_certificate(data):
            raise ConfigRefused(f"{section}.{name}, {path}, holds no certificate in PEM; name a file that does.")
    try:
        _context().load_cert_chain(tls.certificate, tls.key, _no_password)
    except _Encrypted:
        raise ConfigRefused(
            f"{section}.key, {tls.key}, is encrypted, and nobody is there to type its password; name one that is not."
        ) from None
    except (ssl.SSLError, OSError) as error:
        if "MISMATCH" in (getattr(error, "reason", None) or ""):
            raise ConfigRefused(
                f"{section}.key, {tls.key}, is not the key of {tls.certificate}; name two that belong together."
            ) from None
        raise ConfigRefused(f"{section}.key, {tls.key}, holds no private key in PEM; name a file that does.") from None


def _has_certificate(data: bytes) -> bool:
    try:
        _context().load_verify_locations(cadata=data.decode("ascii"))
    except (ssl.SSLError, ValueError):
        return False
    return True


def _context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
