"""Hands the certificate of an HTTP client from its connection to the answers."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from tailrace.tls.engine import PeerIdentity

# The member of a connection's state that has the client's certificate, or None.
CERTIFICATE = "certificate"


def certificate_of(request: HTTPConnection) -> PeerIdentity | None:
    """Returns the verified certificate of the client; None if it has shown none."""
    certificate: PeerIdentity | None = request.scope.get("state", {}).get(CERTIFICATE)
    return certificate
