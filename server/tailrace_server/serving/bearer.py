"""Finds the token in the headers of an HTTP or WebSocket request. Pure.

A URL never has one: URLs are in histories, logs and ``Referer`` headers. A page of a browser cannot set headers of a
WebSocket, so it offers the token as one more subprotocol, which the node never answers with.
"""

from __future__ import annotations

from collections.abc import Sequence

TOKEN_SUBPROTOCOL = "tailrace.token."
_SCHEME = "bearer "


def bearer_of(values: Sequence[str]) -> str | None:
    """Returns the token in the values of ``Authorization``; None without one. Several, or another scheme, are none."""
    if len(values) != 1 or not values[0].lower().startswith(_SCHEME):
        return None
    return values[0][len(_SCHEME) :].strip() or None


def token_of_websocket(authorizations: Sequence[str], subprotocols: Sequence[str]) -> str | None:
    """Returns the token of a WebSocket's handshake; None without one."""
    offered = [text[len(TOKEN_SUBPROTOCOL) :] for text in subprotocols if text.startswith(TOKEN_SUBPROTOCOL)]
    return bearer_of(authorizations) or (offered[0] if len(offered) == 1 else None)
