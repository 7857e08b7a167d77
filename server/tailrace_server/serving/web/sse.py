"""Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html. Pure.

The data of an event is one line of JSON, which has no line ends of its own.
"""

from __future__ import annotations

MEDIA_TYPE = "text/event-stream"
# A comment: it keeps proxies from closing an idle connection, and finds clients that are gone.
HEARTBEAT = b":\n\n"


def encode_event(name: str, data: str, id: str = "") -> bytes:
    """Returns an event. ``id``: the position of a client that has handled it; "" keeps that of the event before."""
    fields = [("event", name), *([("id", id)] if id else []), ("data", data)]
    return "".join([*(f"{field}: {value}\n" for field, value in fields), "\n"]).encode()


def encode_retry(milliseconds: int) -> bytes:
    """Returns the field that tells a browser when to connect again."""
    return f"retry: {milliseconds}\n\n".encode()


def encode_goodbye(why: str) -> bytes:
    """Returns a comment, which no program sees as an event, before an end that is no failure."""
    return f": {why}\n\n".encode()
