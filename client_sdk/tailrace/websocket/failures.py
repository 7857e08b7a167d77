"""Says why a WebSocket was not opened, and what to do."""

from __future__ import annotations

from tailrace.errors import Forbidden, TailraceError, Unreachable
from tailrace.link.rules import TunnelRefused

# Statuses of a proxy or a node that another try may not meet.
_PASSING = (408, 425, 429)
_FORBIDDEN = (401, 403)
_REDIRECTS = range(300, 400)
# The characters of an answer that an error repeats.
_SHOWN_CHARS_MAX = 300


def refused(where: str, target: str, status: int, location: str, body: bytes) -> TailraceError:
    """Returns the error for the answer ``status`` to the request for a WebSocket at ``target``.

    ``location`` is the header of that name. ``body`` may be the beginning of the answer's body.
    """
    text = f"{where} answers {status} to the request for a WebSocket at {target}"
    said = "".join(filter(str.isprintable, body.decode("utf-8", "replace").strip().partition("\n")[0]))
    if said and not said.startswith("<"):  # pages of proxies tell nothing
        text += f": {said[:_SHOWN_CHARS_MAX]}"
    if status in _FORBIDDEN:
        return Forbidden(text)
    if status >= 500 or status in _PASSING:
        return Unreachable(text)
    if status in _REDIRECTS and location.isprintable():
        text += f"; it names another place, {location[:_SHOWN_CHARS_MAX]}: use the URL of that"
    elif status == 404:
        text += "; compare the path of the URL with that of the reverse proxy"
    return TunnelRefused(text)


def no_http(where: str) -> TailraceError:
    """Returns the error for a port that does not answer in HTTP."""
    return TunnelRefused(
        f"{where} does not speak WebSocket: use tailrace:// or tailraces:// for a port of frames, or the node's --ws"
    )


def no_tunnel(where: str, why: str) -> TailraceError:
    """Returns the error for a server that answers the request for a WebSocket in a wrong way."""
    return TunnelRefused(f"{where} opens no WebSocket for frames: {why}")


def closed(where: str) -> Unreachable:
    """Returns the error for a connection that ended before its WebSocket was open."""
    return Unreachable(f"{where} has closed the connection before the WebSocket was open")
