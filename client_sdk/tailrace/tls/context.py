"""Contexts of TLS from files. The contents of keys are in no error and no log."""

from __future__ import annotations

import contextlib
import ssl
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

# Begins each part of a file in PEM.
_BEGIN = "-----BEGIN "
# Python 3.11 needs OpenSSL 1.1.1, which has TLS 1.3 as well.
VERSION_MIN = ssl.TLSVersion.TLSv1_2


class TlsFiles(NamedTuple):
    """The files of a client, in PEM; an empty one is none. Each may also be the text of such a file.

    Attributes:
        ca: The certificates of the authorities that are trusted, in place of the machine's.
        cert: This program's own certificate, with those between it and its authority.
        key: The private key of ``cert``, not encrypted; by default it is in the file ``cert``.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""


NO_FILES = TlsFiles()


def client_context(files: TlsFiles = NO_FILES) -> ssl.SSLContext:
    """Returns a context for a client, which checks certificates and their hosts.

    Raises ValueError if a file cannot be used; the message names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bound(context)
    if files.ca:
        load_authorities(context, files.ca)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if files.key and not files.cert:
        raise ValueError(f"a key was given, {_name(files.key)}, and no certificate: give both")
    if files.cert:
        load_certificate(context, files.cert, files.key)
    return context


def bound(context: ssl.SSLContext) -> None:
    """Turns off versions and functions of TLS that are not needed, on either side."""
    context.minimum_version = VERSION_MIN
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def load_authorities(context: ssl.SSLContext, path: str) -> None:
    """Trusts the authorities of a file, or of its text. Raises ValueError."""
    try:
        if is_text(path):
            context.load_verify_locations(cadata=path)
        else:
            context.load_verify_locations(path)
    except OSError as error:
        raise ValueError(_text(path, error, "certificates of authorities")) from None


def load_certificate(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Shows the certificate of the file ``cert``, or of its text, to peers. Raises ValueError."""
    where = " and ".join(_name(each) for each in (cert, key) if each)
    try:
        with _file_of(cert) as cert_path, _file_of(key) as key_path:
            context.load_cert_chain(cert_path, key_path or None, _no_password)
    except OSError as error:
        raise ValueError(_text(where, error, "a certificate and its key")) from None


def is_text(value: str) -> bool:
    """Tells whether ``value`` is the text of a file in PEM, and not its path."""
    return _BEGIN in value


def _name(value: str) -> str:
    return "the given text" if is_text(value) else value


@contextlib.contextmanager
def _file_of(value: str) -> Iterator[str]:
    """A path with the contents of ``value``: OpenSSL reads certificates to show, and keys, from files only."""
    if not is_text(value):
        yield value
        return
    with tempfile.NamedTemporaryFile("w", prefix="tailrace-", suffix=".pem") as file:  # of mode 0600
        file.write(value)
        file.flush()
        yield file.name


def _no_password() -> str:
    # Without it OpenSSL would ask at the terminal.
    raise ValueError("the private key is encrypted: give a file with the key alone, of mode 0600 (openssl pkey)")


def _text(path: str, error: OSError, what: str) -> str:
    path = _name(path)
    if not isinstance(error, ssl.SSLError):
        return f"{path}: {error.strerror or error}"
    if "MISMATCH" in (error.reason or ""):
        return f"{path}: the key is not that of the certificate"
    return f"{path}: no {what} in PEM ({(error.reason or 'not readable').lower().replace('_', ' ')})"


def context_for(secure: bool, given: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """Returns the context for the nodes of a URL, which is ``secure`` if it begins with ``tailraces://`` or ``wss://``.

    Raises ValueError for a context that would not be used.
    """
    if given is not None and not isinstance(given, ssl.SSLContext):
        raise TypeError(f"tls is a ssl.SSLContext, not {type(given).__name__}")
    if not secure:
        if given is not None:
            raise ValueError("tls= is for URLs that begin with tailraces:// or wss://")
        return None
    return client_context() if given is None else given
