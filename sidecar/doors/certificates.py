"""The certificates of a listener, which may be replaced while it listens."""

from typing import NamedTuple

import grpc


class Pem(NamedTuple):
    """What a listener proves itself with, and whom it believes. It holds a key, so it is not printed."""

    key: bytes
    chain: bytes
    client_ca: bytes | None
    """`None`: peers show no certificates."""

    def __repr__(self) -> str:
        return "Pem(…)"


class Certificates:
    """Gives each new connection the newest certificates. Connections that are open keep theirs."""

    def __init__(self, pem: Pem) -> None:
        self.pem = pem
        self._news: Pem | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials that ask every peer for a certificate, where somebody's are believed."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self.pem),
            self._fetch,  # type: ignore[arg-type]  # its types do not have that `None` is: no news
            require_client_authentication=self.pem.client_ca is not None,
        )

    def renew(self, other: "Certificates") -> None:
        """Takes over the other's."""
        if other.pem != self.pem:
            self.pem = self._news = other.pem

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        # gRPC asks at each handshake, in a thread of its own: so this reads nothing from a disk.
        news, self._news = self._news, None
        return None if news is None else _configuration(news)


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.chain)], pem.client_ca)
