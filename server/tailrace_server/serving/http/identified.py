"""Tells the listener of HTTP which connections are of identified clients: it keeps them before others."""

from __future__ import annotations

from starlette.requests import HTTPConnection

# The member of a connection's state that has the function to call.
IDENTIFIED = "identified"


def note_identified(request: HTTPConnection) -> None:
    """Notes that the client of a request may ask for something here."""
    identified = request.scope.get("state", {}).get(IDENTIFIED)
    if identified is not None:
        identified()
