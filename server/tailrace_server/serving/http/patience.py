"""Tells the listener of HTTP when a client need not say anything: it has asked, and the answer takes long."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from starlette.requests import HTTPConnection

# The member of a connection's state that has the function to call, with True at the beginning and False at the end.
PATIENCE = "patience"


@contextlib.contextmanager
def patient(request: HTTPConnection) -> Iterator[None]:
    """Keeps the connection of a silent client open while the body runs."""
    change = request.scope.get("state", {}).get(PATIENCE, _ignore)
    change(True)
    try:
        yield
    finally:
        change(False)


def _ignore(_: bool) -> None:
    """Does nothing: the request has come by no listener of ours."""
