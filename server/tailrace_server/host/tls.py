"""The certificates of a node: contexts for its listeners and for its connections to other nodes, and their renewal."""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

import trio

from tailrace.tls.context import TlsFiles, bound, client_context, load_authorities, load_certificate
from tailrace.tls.engine import PeerIdentity
from tailrace_server.config import TlsConfig

log = logging.getLogger("tailrace.server")

# The seconds between two looks at the files: a renewed certificate is in use soon, and each look is a few system calls.
CHECK_SECONDS = 3.0

# Runs a function in a thread, and returns its result.
InThread: TypeAlias = Callable[[Callable[[], bool]], Awaitable[bool]]


class _Loaded(NamedTuple):
    """The contents of the files at one moment."""

    listening: ssl.SSLContext
    browsers: ssl.SSLContext
    connecting: ssl.SSLContext
    node_authorities: frozenset[str]
    client_authorities: frozenset[str]
    expires_at: float  # seconds since 1970 UTC
    marks: tuple[object, ...]


class NodeTls:
    """The certificates in use. `reload` replaces them for new connections; open ones keep theirs."""

    def __init__(self, config: TlsConfig) -> None:
        """Raises ValueError if a file cannot be used; the message names it."""
        self.config = config
        self._loaded = _load(config)
        self._refused: tuple[object, ...] | None = None  # the marks of files that could not be used
        self.error: str | None = None

    @property
    def listening(self) -> ssl.SSLContext:
        """The context for connections of clients and other nodes."""
        return self._loaded.listening

    def for_browsers(self) -> ssl.SSLContext:
        """Returns the context for HTTP and WebSocket."""
        return self._loaded.browsers

    @property
    def connecting(self) -> ssl.SSLContext:
        """The context for connections to other nodes, which shows the node's certificate."""
        return self._loaded.connecting

    @property
    def requires_node_certificates(self) -> bool:
        """Whether a peer that says it is a node has to prove it by a certificate."""
        return bool(self.config.node_ca)

    def is_node(self, identity: PeerIdentity | None) -> bool:
        """Tells whether a peer's certificate is of an authority of nodes."""
        return identity is not None and identity.authority in self._loaded.node_authorities

    def is_client(self, identity: PeerIdentity) -> bool:
        """Tells whether a peer's certificate is of an authority of clients."""
        return identity.authority in self._loaded.client_authorities

    def reload(self) -> bool:
        """Reads the files again. Keeps the present certificates, and logs an error, if they cannot be used.

        Returns whether the files could be used. May wait for the disk.
        """
        marks = _marks(self.config)
        try:
            self._loaded = _load(self.config)
        except ValueError as error:
            self._refused, self.error = marks, str(error)
            log.error("the certificate in use stays, because the new files cannot be used: %s", error)
            return False
        self._refused = self.error = None
        log.info("the certificates were read again; %s expires in %s", self.config.cert, _days(self.expires_in_s))
        return True

    def has_changed(self) -> bool:
        """Tells whether a file is another one than when it was read last. May wait for the disk."""
        return _marks(self.config) not in (self._loaded.marks, self._refused)

    async def keep_renewed(self, in_thread: InThread) -> None:
        """Reads the files again when one of them has changed. Runs until cancelled."""
        while True:
            await trio.sleep(CHECK_SECONDS)
            if await in_thread(self.has_changed):
                await in_thread(self.reload)

    @property
    def expires_in_s(self) -> float:
        """The seconds until the certificate in use expires; negative if it has."""
        return self._loaded.expires_at - time.time()

    def status(self) -> dict[str, object]:
        """Returns the part of the node's status on TLS."""
        expires_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._loaded.expires_at))
        return {
            "expires_at": expires_at,
            "expires_in_s": round(self.expires_in_s),
            "client_certificates": _asked(self.config),
            "node_certificates": self.requires_node_certificates,
            "error": self.error,
        }


def _asked(config: TlsConfig) -> str:
    if config.require_client_cert:
        return "required"
    return "accepted" if config.client_ca or config.peer_ca else "none"


def _days(seconds: float) -> str:
    return f"{seconds / 86_400:.1f} days"


def _load(config: TlsConfig) -> _Loaded:
    marks = _marks(config)  # before the files: a change meanwhile is noticed later
    connecting = client_context(TlsFiles(config.node_ca, config.cert, config.key))
    listening, browsers = _server_context(config), _server_context(config)
    listening.options |= ssl.OP_NO_TICKET
    listening.num_tickets = 0  # clients of frames begin each session anew
    for context in (listening, browsers):
        for path in dict.fromkeys(filter(None, (config.client_ca, config.peer_ca))):
            load_authorities(context, path)
            context.verify_mode = ssl.CERT_OPTIONAL
    if config.require_client_cert:
        listening.verify_mode = browsers.verify_mode = ssl.CERT_REQUIRED
    nodes, clients = _authorities(config.node_ca), _authorities(config.client_ca)
    return _Loaded(listening, browsers, connecting, nodes, clients, _expiry(config.cert), marks)


def _authorities(path: str) -> frozenset[str]:
    """Returns the hashes of the certificates in a file of authorities; none without one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if path:
        load_authorities(context, path)
    return frozenset(hashlib.sha256(der).hexdigest() for der in context.get_ca_certs(binary_form=True))


def _server_context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    bound(context)
    load_certificate(context, config.cert, config.key)
    return context


def _expiry(path: str) -> float:
    """Returns when the first certificate of a file expires, in seconds since 1970 UTC."""
    from cryptography import x509  # only nodes with TLS need it

    try:
        with open(path, "rb") as file:
            return x509.load_pem_x509_certificates(file.read())[0].not_valid_after_utc.timestamp()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path}: {error}") from None


def _marks(config: TlsConfig) -> tuple[object, ...]:
    """Returns what tells whether a file was replaced or written: changes of one second, too."""
    marks: list[object] = []
    for path in config.paths:
        try:
            found = os.stat(path)
        except OSError as error:
            marks.append(error.errno)
        else:
            marks.append((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))
    return tuple(marks)
