"""Tells whether the page of a request is the node's own. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_own_origin(origin: str | None, host: str | None) -> bool:
    """Returns whether a page of this ``Origin`` is the node's own: it was loaded from the same ``Host``.

    None for the origin: there was none, so it is no browser's.
    """
    if origin is None:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and parts.netloc.lower() == (host or "").lower()
