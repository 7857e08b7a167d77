"""A process that sends a file through a socket and does nothing else: the least that a node could do."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

# Reads a file, and sums and sends it, a MiB at a time; then prints its processor time.
_PROGRAM = """
import os, socket, sys, time, xxhash
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    connection, _ = server.accept()
began = time.process_time()
with open(sys.argv[1], "rb", buffering=0) as file:
    buffer = memoryview(bytearray(1024 * 1024))
    while count := file.readinto(buffer):
        xxhash.xxh3_64_intdigest(buffer[:count])
        connection.sendall(buffer[:count])
connection.close()
print(time.process_time() - began)
"""


class BareSender:
    """The process, while its body runs. It begins to send when ``connect`` is called."""

    def __init__(self, path: Path) -> None:
        """``path``: the file that is sent."""
        self._process = subprocess.Popen([sys.executable, "-c", _PROGRAM, str(path)], stdout=subprocess.PIPE, text=True)

    def connect(self) -> socket.socket:
        """Returns the socket that the file comes from."""
        return socket.create_connection(("127.0.0.1", int(self._line())))

    def cpu_seconds(self) -> float:
        """Returns the processor time that the sending took, once the whole file was received."""
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def __enter__(self) -> BareSender:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
