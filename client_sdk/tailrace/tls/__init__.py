"""TLS without sockets: the engine that both shells use, contexts from files, and errors that say what to do."""

from tailrace.tls.context import TlsFiles, client_context
from tailrace.tls.engine import PeerIdentity, TlsEngine
from tailrace.tls.failures import TlsRefused

__all__ = ["PeerIdentity", "TlsEngine", "TlsFiles", "TlsRefused", "client_context"]
