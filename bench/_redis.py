"""A Redis in a process of its own, on loopback. Needs redis-server (Debian, Ubuntu: sudo apt install redis-server)."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def redis_server(folder: Path, appendfsync: str = "always") -> Iterator[int]:
    """A Redis of our own over an existing folder, with an append-only file; gives its port."""
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("redis-server is not installed; Debian, Ubuntu: sudo apt install redis-server")
    port = free_port()
    settings = {"port": port, "bind": "127.0.0.1", "dir": folder, "appendonly": "yes", "appendfsync": appendfsync}
    settings |= {"save": "", "daemonize": "no", "loglevel": "warning"}
    command = [program, *(part for name, value in settings.items() for part in (f"--{name}", str(value)))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_for(port)
            yield port
        finally:
            process.terminate()


def wait_for(port: int) -> None:
    """Returns once something listens."""
    deadline = time.monotonic() + 20
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if time.monotonic() > deadline:
            sys.exit(f"nothing listens on port {port} after 20 s")
        time.sleep(0.02)
