"""``python relay.py PORT``: relays connections to a port of this machine, and counts the bytes of both directions.

Prints "ready" and the port that it listens on; then, for each line of its input, the bytes so far. The bytes stay in
the kernel (splice), so that the relay takes little of the processors.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading

_PIECE_BYTES = 1024 * 1024


class _Count:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.nbytes = 0

    def add(self, nbytes: int) -> None:
        with self._lock:
            self.nbytes += nbytes


def _copy(source: socket.socket, target: socket.socket, count: _Count) -> None:
    """Copies until ``source`` ends, and ends ``target`` then."""
    reader, writer = os.pipe()
    with contextlib.suppress(OSError):
        while nbytes := os.splice(source.fileno(), writer, _PIECE_BYTES):
            count.add(nbytes)
            while nbytes:
                nbytes -= os.splice(reader, target.fileno(), nbytes)
    for sock in (source, target):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
    os.close(reader)
    os.close(writer)


def _accept(listener: socket.socket, port: int, count: _Count) -> None:
    while True:
        one, _ = listener.accept()
        try:
            other = socket.create_connection(("127.0.0.1", port))
        except OSError:
            one.close()
            continue
        for source, target in ((one, other), (other, one)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_copy, args=(source, target, count), daemon=True).start()


def main(port: int) -> None:
    """Relays until its input ends."""
    count = _Count()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print("ready", listener.getsockname()[1], flush=True)
        threading.Thread(target=_accept, args=(listener, port, count), daemon=True).start()
        for _ in sys.stdin:
            print(count.nbytes, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
