"""Certificates made in a test: an authority, and what it issues."""

import datetime as dt
import ipaddress
from pathlib import Path
from typing import NamedTuple

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)


class Issued(NamedTuple):
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class Shown(NamedTuple):
    """What a peer shows, and whom it believes."""

    ca: Path
    issued: Issued | None

    @property
    def credentials(self) -> grpc.ChannelCredentials:
        """As gRPC takes it."""
        if self.issued is None:
            return grpc.ssl_channel_credentials(self.ca.read_bytes())
        return grpc.ssl_channel_credentials(
            self.ca.read_bytes(), self.issued.key.read_bytes(), self.issued.certificate.read_bytes()
        )


class Authority:
    """Issues certificates. Its own is in the file `ca`."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._count = 0
        own = self._builder(self._name, self._key, is_authority=True).sign(self._key, hashes.SHA256())
        self.ca = directory / f"{name}.pem"
        self.ca.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def issue(self, *names: str | x509.GeneralName, stem: str | None = None, password: bytes | None = None) -> Issued:
        """A certificate for DNS names, addresses and URIs; for none, one without a subject's alternative name.

        `stem` names its files, which are written over.
        """
        self._count += 1
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_named("holder"), key, is_authority=False)
        if names:
            alternatives = [_alternative(name) if isinstance(name, str) else name for name in names]
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        stem = stem or f"{self.ca.stem}-{self._count}"
        issued = Issued(self._directory / f"{stem}.crt", self._directory / f"{stem}.key")
        locked = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
        issued.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        issued.key.touch(0o600)
        issued.key.write_bytes(private)
        return issued

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
