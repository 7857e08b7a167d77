"""A server on bare trio that appends rows to a file, syncs it, and answers: ``server.py PORT FILE``.

It has no frames, checks, seqs, or memory of what it took. All connections that have rows share one fdatasync.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys

import trio

ROW_BYTES = 116
ANSWER = struct.Struct("<Q")  # how many rows it has
_RECEIVE_BYTES = 64 * 1024


class _Server:
    def __init__(self, port: int, path: str) -> None:
        self._listener = socket.create_server(("127.0.0.1", port), backlog=256)
        self._listener.setblocking(False)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._socks: dict[int, socket.socket] = {}
        self._begun: dict[int, bytes] = {}  # what has come of the next row
        self._rows = 0

    async def run(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._epoll)
            found = []
            for number, _ in self._epoll.poll(0):
                if number == self._listener.fileno():
                    self._accept()
                elif rows := self._receive(number):
                    found.append((number, rows))
            if found:
                self._write(found)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._epoll.register(sock, select.EPOLLIN)
        self._socks[sock.fileno()] = sock

    def _receive(self, number: int) -> bytes:
        """Returns the whole rows that have come."""
        try:
            data = self._socks[number].recv(_RECEIVE_BYTES)
        except OSError:
            data = b""
        if not data:
            self._epoll.unregister(number)
            self._socks.pop(number).close()
            self._begun.pop(number, None)
            return b""
        if number in self._begun:
            data = self._begun.pop(number) + data
        if left := len(data) % ROW_BYTES:
            self._begun[number] = data[-left:]
            data = data[:-left]
        return data

    def _write(self, found: list[tuple[int, bytes]]) -> None:
        os.write(self._file, b"".join([rows for _, rows in found]))
        os.fdatasync(self._file)
        for number, rows in found:
            count = len(rows) // ROW_BYTES
            answers = []
            for _ in range(count):
                self._rows += 1
                answers.append(ANSWER.pack(self._rows))
            try:
                self._socks[number].send(b"".join(answers))
            except OSError:
                continue  # its end is read in the next turn


if __name__ == "__main__":
    trio.run(_Server(int(sys.argv[1]), sys.argv[2]).run)
