"""HTTP/1.1 alone, in Hypercorn's place of its own.

Hypercorn also speaks HTTP/2, without TLS and to any client that begins so. Such a connection has a hundred requests,
and one that takes none of its answer stays for ever. The bounds of the listener are those of connections: it counts
them, and closes one that takes nothing. Hypercorn has no setting for that.
"""

from __future__ import annotations

from hypercorn import protocol
from hypercorn.protocol.h11 import H11Protocol


class Http1(H11Protocol):
    """A connection that stays with HTTP/1.1, whatever its client offers."""

    async def _check_protocol(self, _: object) -> None:
        """Ignores the offer of h2c. A request of HTTP/2 is answered as one of an unknown path."""


def refuse_http2() -> None:
    """Makes the connections of this process use it. May be called again."""
    protocol.H11Protocol = Http1  # type: ignore[attr-defined]
