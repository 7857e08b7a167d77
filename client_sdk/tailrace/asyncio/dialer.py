"""Chooses how a client connects to the nodes of its URL."""

from __future__ import annotations

import ssl
from functools import partial

from tailrace.asyncio.opening import open_connection
from tailrace.asyncio.transport import Connect


def dialer(secure: bool, tunnel: str | None, tls: ssl.SSLContext | None) -> Connect:
    """Returns what makes the connections that a client's URL asks for.

    Args:
        secure: Whether the URL asks for TLS.
        tunnel: The path of the URL's WebSocket; None without one.
        tls: The context of TLS, if it is given.

    Raises ValueError for a context that would not be used, and ImportError without the library of WebSocket.
    """
    context = None
    if secure or tls is not None:
        from tailrace.tls.context import context_for

        context = context_for(secure, tls)
    if tunnel is not None:
        from tailrace.asyncio.websocket import open_websocket

        return partial(open_websocket, tunnel, context)
    return partial(open_connection, context=context)
