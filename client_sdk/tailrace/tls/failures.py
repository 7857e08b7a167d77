"""Says what was wrong with a TLS connection, and what to do."""

from __future__ import annotations

import ssl

from tailrace.errors import Forbidden, ProtocolError, TailraceError, Unreachable
from tailrace.link.rules import TlsRefused

# Codes of OpenSSL's verification (x509_vfy.h).
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNTRUSTED = (2, 18, 19, 20, 21)
_OTHER_HOST, _OTHER_EMAIL, _OTHER_IP = 62, 63, 64
# Reasons of alerts by which a peer refuses this side's certificate.
_NEEDS_CERTIFICATE = ("CERTIFICATE_REQUIRED", "ALERT_HANDSHAKE_FAILURE")
_NO_VERSION = ("ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE")
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
_CERTIFICATE_FILES = "tls= with load_cert_chain(), or --tls-cert and --tls-key"


def explain(error: ssl.SSLError, where: str, *, is_shaken: bool = False) -> TailraceError:
    """Returns the error of a client whose TLS with the node at ``where`` has failed.

    ``is_shaken``: the handshake was complete on this side. A node may refuse the certificate of this side after it.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsRefused(_certificate(error, where))
    reason = error.reason or ""
    if any(name in reason for name in _NEEDS_CERTIFICATE):
        return Forbidden(f"{where} requires a certificate of this program: give one by {_CERTIFICATE_FILES}")
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return Forbidden(
            f"{where} refuses the certificate of this program ({_words(reason)}): give one by {_CERTIFICATE_FILES} "
            "that an authority of the node's --tls-client-ca has signed, and that has not expired"
        )
    if is_shaken:
        return Unreachable(f"TLS with {where} has failed: {_words(reason) or error.strerror or error}")
    if any(name in reason for name in _NO_VERSION):
        return TlsRefused(f"{where} and this program have no version of TLS in common: both need TLS 1.2 or 1.3")
    if any(name in reason for name in _NO_TLS):
        return no_tls(where)
    return Unreachable(f"the TLS handshake with {where} has failed: {_words(reason) or error.strerror or error}")


def no_tls(where: str) -> ProtocolError:
    """Returns the error for a port that answers without TLS."""
    return TlsRefused(
        f"{where} does not speak TLS: use tailrace:// for it, or ws:// in place of wss://; "
        "or start the node with --tls-cert"
    )


def closed(where: str) -> Unreachable:
    """Returns the error for a connection that ended in its handshake."""
    return Unreachable(f"{where} has closed the connection before the TLS handshake was complete")


def bad_host(where: str, error: ValueError) -> TlsRefused:
    """Returns the error for a host that no certificate can name."""
    return TlsRefused(f"{where} cannot be used with TLS: {error}")


def _certificate(error: ssl.SSLCertVerificationError, where: str) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return f"the certificate of {where} has expired: renew the file of its --tls-cert"
    if code == _NOT_YET_VALID:
        return f"the certificate of {where} is not valid yet: compare the clocks of both machines"
    if code in (_OTHER_HOST, _OTHER_EMAIL, _OTHER_IP):
        return (
            f"the certificate of {where} is for another host: use a name that it has, or make one with this name "
            f"({error.verify_message})"
        )
    if code in _UNTRUSTED:
        return (
            f"the certificate of {where} is of an authority that this program does not trust ({error.verify_message}): "
            "name the authority's file by --tls-ca, or by tls= with load_verify_locations()"
        )
    return f"the certificate of {where} cannot be verified: {error.verify_message}"


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")


__all__ = ["TlsRefused", "bad_host", "closed", "explain", "no_tls"]
