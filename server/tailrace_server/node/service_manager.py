"""Tells the service manager how the node stands, if one asks for it: systemd's Type=notify.

systemd names a socket in NOTIFY_SOCKET, and takes one datagram for each message (sd_notify(3)).
"""

from __future__ import annotations

import contextlib
import os
import socket

READY = "READY=1"
STOPPING = "STOPPING=1"


def tell_service_manager(state: str) -> None:
    """Sends a state, such as READY. Does nothing if no manager asks, or if it does not listen any more."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if not name.startswith(("/", "@")):
        return
    address = "\0" + name[1:] if name.startswith("@") else name
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
    ):
        sock.sendto(state.encode(), address)
