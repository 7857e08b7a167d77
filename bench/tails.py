"""What many WebSocket tails of one feed cost a node, and how late their rows are.

    python bench/tails.py [--tails 500] [--rate 2000] [--seconds 20] [--partitions 4]

One process is the node, ``tailrace serve``. Another one writes rows of 16 + 100 bytes at the rate, some every
10 ms, with the time in the value. A third one has the tails: it reads bytes and counts the
rows in them. Of one tail in twenty it takes the age of the first row of each message, when that has come.

What is told: the node's processor time, as a part of a core and for each row that a tail gets; its memory for each
tail; the age of the rows when they come; and whether each tail has got every row. If the node cannot keep up, rows wait
in it, and their age tells for how long.
"""

from __future__ import annotations

import argparse
import json
import re
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
# Each row has the first, each message of rows the second; a ping has 4 bytes.
_ROW, _MESSAGE, _PING = b'"deleted":', b'{"type":"mutations"', b"\x89\x04"
_MARK_BYTES = 32
_FIRST = re.compile(rb'"rows":\[\{"key":"[^"]*","value":"(\d+\.\d+) ')
_buffer = bytearray(256 * 1024)
_SETTLE_SECONDS = 3.0
_PAUSE_SECONDS = 0.01


class _Tail:
    """A tail as a page would have it, without the page. It looks for a few marks in its bytes, and cuts no frames.

    So one core reads some 500 MB a second. No mark occurs in the rows that are written, and a ping has
    bytes that no text of them has.
    """

    def __init__(self, port: int, is_sampled: bool) -> None:
        self.rows = 0
        self.messages = 0
        self.ages: list[float] = []
        self._is_sampled = is_sampled
        self._end = b""  # of what has come: a mark may have been cut
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(
            b"GET /feeds/%s?since=now HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: tailrace.json.v1\r\n\r\n"
            % (_FEED.encode(), port, _KEY)
        )
        answer = b""
        while b'"type":"open"' not in answer:
            data = self.socket.recv(4_096)
            if not data or (b"\r\n\r\n" in answer and not answer.startswith(b"HTTP/1.1 101")):
                sys.exit(f"a tail was refused: {answer[:300]!r}")
            answer += data
        self.socket.setblocking(False)

    def read(self) -> None:
        """Takes what has come."""
        size = self.socket.recv_into(_buffer)
        if not size:
            sys.exit(f"the node has closed a tail: {self._end!r}")
        joint = self._end + bytes(_buffer[: _MARK_BYTES - 1])[:size]
        self.rows += _buffer.count(_ROW, 0, size) + self._cut(_ROW, joint)
        self.messages += _buffer.count(_MESSAGE, 0, size) + self._cut(_MESSAGE, joint)
        if _PING in joint or _buffer.find(_PING, 0, size) >= 0:
            self._answer(self._end + bytes(_buffer[:size]))
        if self._is_sampled:
            now = time.time()
            self.ages += [now - float(found[1]) for found in _FIRST.finditer(_buffer, 0, size)]
        self._end = (self._end + bytes(_buffer[max(0, size - _MARK_BYTES) : size]))[-_MARK_BYTES:]

    def _answer(self, data: bytes) -> None:
        """Answers a ping, if it has come as a whole."""
        begin = data.rindex(_PING) + len(_PING)
        payload = data[begin : begin + 4]
        if len(payload) == 4:
            # By a mask of zeros, which leaves the bytes as they are.
            self.socket.sendall(bytes([0x8A, 0x80 | len(payload)]) + bytes(4) + payload)

    def _cut(self, mark: bytes, joint: bytes) -> int:
        """Returns 1 if the mark was begun by the end of what had come before, and ends in what has come now."""
        begin = len(self._end) - len(mark) + 1
        return joint.count(mark, max(begin, 0), len(self._end) + len(mark) - 1)


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
