"""What many WebSocket tails of one feed cost a node, and how late their rows are.

    python bench/tails.py [--tails 500] [--rate 2000] [--seconds 20] [--partitions 4]

One process is the node, ``tailrace serve``. Another one writes rows of 16 + 100 bytes at the rate, some every
10 ms, with the time in the value. A third one has the tails: it reads frames and counts the
rows. Of one tail in twenty it takes the age of the first row of each message, when that has come.

What is told: the node's processor time, as a part of a core and for each row that a tail gets; its memory for each
tail; the age of the rows when they come; and whether each tail has got every row. If the node cannot keep up, rows wait
in it, and their age tells for how long.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import trio

import tailrace
from _report import Line, p50, show
from _server import Server

_FEED = "orders"
_SAMPLED = 20
_KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
_TEXT, _PING, _PONG = 1, 9, 10
_SETTLE_SECONDS = 3.0
_PAUSE_SECONDS = 0.01


class _Tail:
    """A tail as a page would have it, without the page: the frames of its socket, cut and counted."""

    def __init__(self, port: int, is_sampled: bool) -> None:
        self.rows = 0
        self.messages = 0
        self.ages: list[float] = []
        self._is_sampled = is_sampled
        self._data = bytearray()
        self.last = b""  # for an error
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(
            b"GET /feeds/%s?since=now HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: tailrace.json.v1\r\n\r\n"
            % (_FEED.encode(), port, _KEY)
        )
        while b"\r\n\r\n" not in self._data:
            self._data += self.socket.recv(4_096)
        if not self._data.startswith(b"HTTP/1.1 101"):
            sys.exit(f"a tail was refused: {bytes(self._data[:300])!r}")
        del self._data[: self._data.index(b"\r\n\r\n") + 4]
        self.socket.setblocking(False)

    def read(self) -> None:
        """Takes what has come."""
        data = self.socket.recv(1 << 20)
        if not data:
            sys.exit(f"the node has closed a tail: {self.last[:300]!r}")
        self._data += data
        self.last = data
        while (message := self._message()) is not None:
            opcode, body = message
            if opcode == _PING:
                # By a mask of zeros, which leaves the bytes as they are.
                self.socket.sendall(bytes([0x80 | _PONG, 0x80 | len(body)]) + bytes(4) + body)
            elif opcode == _TEXT:
                self._took(body)

    def _message(self) -> tuple[int, bytes] | None:
        """Returns the opcode and the body of a message; None if it has not come as a whole."""
        data = self._data
        if len(data) < 2:
            return None
        assert data[0] & 0x70 == 0, "the node compresses nothing"
        head, size = 2, data[1] & 0x7F
        if size >= 126:
            head += 2 if size == 126 else 8
            if len(data) < head:
                return None
            size = int.from_bytes(data[2:head], "big")
        if len(data) < head + size:
            return None
        opcode, message = data[0] & 0x0F, bytes(data[head : head + size])
        del data[: head + size]
        return opcode, message

    def _took(self, message: bytes) -> None:
        if not message.startswith(b'{"type":"mutations"'):
            return
        self.messages += 1
        self.rows += message.count(b'"seq":')
        if self._is_sampled:
            first = json.loads(message)["rows"][0]
            self.ages.append(time.time() - float(first["value"].split()[0]))


class _Told(NamedTuple):
    rows: list[int]
    messages: int
    ages: list[float]


def _tails(port: int, count: int) -> None:
    """Has the tails until a line comes on stdin, and for as long as rows come after it; prints what they saw."""
    tails = [_Tail(port, number % _SAMPLED == 0) for number in range(count)]
    selector = selectors.DefaultSelector()
    for tail in tails:
        selector.register(tail.socket, selectors.EVENT_READ, tail)
    selector.register(sys.stdin, selectors.EVENT_READ)
    print("ready", flush=True)
    has_ended = False
    while True:
        ready = selector.select(_SETTLE_SECONDS)
        if not ready and has_ended:
            break
        for key, _ in ready:
            if isinstance(key.data, _Tail):
                key.data.read()
            else:
                sys.stdin.readline()
                selector.unregister(sys.stdin)
                has_ended = True
    ages = [age for tail in tails for age in tail.ages]
    told = _Told([tail.rows for tail in tails], sum(tail.messages for tail in tails), ages)
    print(json.dumps(told._asdict()))


async def _write(address: str, rate: int, seconds: float) -> None:
    """Puts rows one by one at the rate, prints how many."""
    async with tailrace.connect(address) as client:
        feed = client.feed(_FEED)
        begin, rows = trio.current_time(), 0
        async with feed.writer() as writer:
            while (passed := trio.current_time() - begin) < seconds:
                for _ in range(int(passed * rate) - rows):
                    await writer.put(b"key-%012d" % rows, f"{time.time():.6f} {rows:080d}".encode())
                    rows += 1
                await trio.sleep(_PAUSE_SECONDS)
    print(rows)


def _ask(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def _make(address: str, partitions: int) -> None:
    async with tailrace.connect(address) as client:
        await client.create_feed(_FEED, partitions=partitions)


def _run(options: argparse.Namespace) -> list[Line]:
    count = options.tails
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        more = ["--ws", "127.0.0.1:0", *options.serve]
        with Server(folder / "data", folder / "log", options=more) as server:
            trio.run(_make, server.address, options.partitions)
            port = server.ws_port
            alone = _measured(server, options)
            before = server.memory_bytes()
            tails = _ask("--have", count, "--port", port)
            assert tails.stdout is not None
            if tails.stdout.readline() != "ready\n":
                sys.exit("the tails did not begin")
            time.sleep(_SETTLE_SECONDS)
            idle = server.memory_bytes()
            with_tails = _measured(server, options)
            busy = server.memory_bytes()
            told = _Told(**json.loads(tails.communicate("end\n")[0]))
            after = server.cpu_seconds()
    ages = sorted(told.ages)
    of_tails = after - with_tails.cpu_before - alone.seconds
    complete = sum(rows == with_tails.rows for rows in told.rows)
    what = f"{count} tails"
    return [
        Line("rows written, each second", with_tails.rows / options.seconds, ""),
        Line("the node without tails", alone.seconds / options.seconds * 100, "% of a core"),
        Line(f"{what}: the node, while rows are written", with_tails.seconds / options.seconds * 100, "% of a core"),
        Line(f"{what}: its processor for a row of a tail", of_tails / with_tails.rows / count * 1e6, "µs"),
        Line(f"{what}: memory for each that waits", (idle - before) / count / 1024, "KiB"),
        Line(f"{what}: memory for each at the rate", (busy - before) / count / 1024, "KiB"),
        Line(f"{what}: messages to each, a second", told.messages / count / options.seconds, ""),
        Line(f"{what}: age of a row, p50", p50(ages) * 1e3, "ms"),
        Line(f"{what}: age of a row, p99", ages[int(len(ages) * 0.99)] * 1e3, "ms"),
        Line(f"{what}: tails that got each row once", complete / count * 100, "%", least=100),
    ]


class _Measured(NamedTuple):
    rows: int
    cpu_before: float
    seconds: float  # of the node's processor


def _measured(server: Server, options: argparse.Namespace) -> _Measured:
    cpu = server.cpu_seconds()
    writer = _ask("--write", options.rate, "--seconds", options.seconds, "--port", server.port)
    rows = int(writer.communicate()[0])
    return _Measured(rows, cpu, server.cpu_seconds() - cpu)


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tails", type=int, default=500)
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--serve", nargs="*", default=[], help="more options of the node")
    parser.add_argument("--have", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.have:
        _tails(options.port, options.have)
    elif options.write:
        trio.run(_write, f"tailrace://127.0.0.1:{options.port}", options.write, options.seconds)
    else:
        lines = _run(options)
        show(lines, f"{options.tails} tails of a feed with {options.rate} mutations a second")
        sys.exit(not all(line.is_met for line in lines))


if __name__ == "__main__":
    main()
