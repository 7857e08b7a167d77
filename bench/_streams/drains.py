"""``python drains.py PORT FEED COUNT ROWS``: so many consumers, each a connection, that look at frames' headers alone.

They grant what they were sent, as the SDK does, and let the kernel throw the blocks away (``MSG_TRUNC``), so that what
a processor is busy with is the node. Prints "ready", and connects after a line of input; prints "agreed" once every
stream has been agreed to, then the monotonic time at which each consumer had ``ROWS`` rows.
"""

from __future__ import annotations

import selectors
import socket
import struct
import sys
import time

from tailrace.model import Level
from tailrace.model.failover import FailoverLog
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.frames import FRAME_HEADER_BYTES
from tailrace.wire.messages import Hello
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import StreamRequest, decode_seq, encode_number

_HEADER = struct.Struct("<IBBHII")
_READ_BYTES = 64 * 1024
_SKIP_BYTES = 1024 * 1024
_WINDOW_BYTES = Hello().window_bytes


class Drain:
    """One consumer of every partition of a feed, from the beginning."""

    def __init__(self, port: int, feed: str, rows: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rows = rows
        self.waiting = -1  # partitions that have not been agreed to; -1 before they are known
        self._seqs: dict[int, int] = {}
        self._held = b""
        self._skip = self._owed = 0
        self._scratch = bytearray(_SKIP_BYTES)
        self.sock.sendall(Hello().encode() + encode_json(Opcode.PARTITIONS, {"name": feed}, 0xFFFFFFFF))

    @property
    def done(self) -> bool:
        """It has been given all rows."""
        return sum(self._seqs.values()) >= self.rows

    def read(self) -> None:
        """Takes what has arrived, which is something."""
        if self._skip:
            skipped = self.sock.recv_into(self._scratch, min(self._skip, _SKIP_BYTES), socket.MSG_TRUNC)
            self._skip -= skipped
            assert skipped, "the node has closed the connection"
            return
        data = self.sock.recv(_READ_BYTES)
        assert data, "the node has closed the connection"
        data = self._held + data
        at, size = 0, len(data)
        while size - at >= FRAME_HEADER_BYTES:
            body_bytes, opcode, _, _, _, _ = _HEADER.unpack_from(data, at)
            end = at + FRAME_HEADER_BYTES + body_bytes
            if opcode == Opcode.BLOCK:
                self._owed += body_bytes
                if end > size:
                    self._skip = end - size
                    end = size
            elif end > size:
                break
            else:
                self._handle(opcode, memoryview(data)[at + FRAME_HEADER_BYTES : end])
            at = end
        self._held = data[at:]
        if self._owed >= _WINDOW_BYTES // 4:
            self.sock.sendall(encode_number(Opcode.CREDIT, self._owed))
            self._owed = 0

    def _handle(self, opcode: int, body: memoryview) -> None:
        if opcode == Opcode.SNAPSHOT_END:
            partition, seq = decode_seq(body, "SNAPSHOT_END")
            self._seqs[partition] = seq
        elif opcode == Opcode.STREAM_OK:
            self.waiting -= 1
        elif opcode == Opcode.RESULT:
            value = decode_json(body, "RESULT")
            feed_id, partitions = bytes.fromhex(value["feed"]["feed_id"]), value["partitions"]
            self.waiting = len(partitions)
            for p in partitions:
                request = StreamRequest(feed_id, p["id"], FailoverLog(), 0, 0, 0, None, None, Level.DISK)
                self.sock.sendall(request.encode(p["id"] + 1))
        else:
            assert opcode in (Opcode.HELLO_OK, Opcode.NOOP, Opcode.SNAPSHOT_START, Opcode.ROUND_COMPLETE), opcode


def run(port: int, feed: str, count: int, rows: int) -> None:
    """Until every consumer has every row."""
    print("ready", flush=True)
    sys.stdin.readline()
    selector = selectors.DefaultSelector()
    drains = [Drain(port, feed, rows) for _ in range(count)]
    for drain in drains:
        selector.register(drain.sock, selectors.EVENT_READ, drain)
    agreed = False
    left = set(drains)
    while left:
        for key, _ in selector.select():
            key.data.read()
            if key.data.done:
                left.discard(key.data)
        if not agreed and all(drain.waiting == 0 for drain in drains):
            agreed = True
            print("agreed", flush=True)
    print(time.monotonic(), flush=True)
    sys.stdin.readline()  # its processor time is read before it ends


if __name__ == "__main__":
    run(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
