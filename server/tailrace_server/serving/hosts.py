"""Checks the name by which a browser reached this node, the header ``Host`` of its request. Pure.

A page can let its own name resolve to the address of a node that only its visitor reaches (DNS rebinding). To the
browser the node is then of the page's origin, and the page may read the answers. ``Host`` tells the node: it has the
page's name. An address and ``localhost`` are safe, since no page can let them resolve to anything else.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

ANY_HOST = "*"
# The most characters of a name that are repeated in an answer.
_SHOWN_CHARS_MAX = 100


def host_allowed(header: str | None, names: Collection[str]) -> bool:
    """Returns whether a request with this ``Host`` may be answered.

    Args:
        header: the header's value, a host and perhaps a port; None: there was none, so it is no browser's.
        names: the host names that the node may be reached by, in lower case; ``*``: by any.
    """
    if header is None or ANY_HOST in names:
        return True
    host = _host_of(header)
    return host == "localhost" or host in names or _is_address(host)


def refusal(header: str | None) -> str:
    """Returns the answer to a client whose ``Host`` is not allowed."""
    host = _host_of(header or "")[:_SHOWN_CHARS_MAX]
    return (
        f"this node is not known as {host!r}: use its address, or name the host with serve --allow-host {host} "
        "(as a reverse proxy passes it on)\n"
    )


def _host_of(header: str) -> str:
    """Returns the host in lower case, without brackets, port and final dot."""
    host, colon, port = header.strip().lower().rpartition(":")
    if not colon or not port.isdecimal() or (":" in host and not host.endswith("]")):
        host = header.strip().lower()
    return host.removeprefix("[").removesuffix("]").removesuffix(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
