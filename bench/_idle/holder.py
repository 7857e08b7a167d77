"""``python holder.py PORT FEED_ID FIRST COUNT STREAMS PARTITIONS``: COUNT connections, each with so many streams.

Raw sockets that speak the protocol, as a consumer of the SDK does on the wire: HELLO, STREAM_REQUEST from now on, and a
NOOP in half of the node's interval, each connection at its own time. What comes is read and dropped. Ten thousand
consumers of the SDK would take gigabytes here, and not one byte more of the node.

Prints "ready" once all streams are open. Ends with an error if the node ends a connection.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections.abc import Iterator

from tailrace.model import Level
from tailrace.model.failover import FailoverLog
from tailrace.wire.frames import FRAME_BODY_BYTES_MAX, Frame, FrameDecoder, encode_frame
from tailrace.wire.messages import Hello
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import StreamRequest

# The connections that greet at a time: a node ends the oldest of too many that have not.
_AT_ONCE = 64
_NOOP = encode_frame(Opcode.NOOP)
_SECONDS_MAX = 300.0
_READ_BYTES = 256 * 1024


class Held:
    """One connection, until its streams are open."""

    def __init__(self, port: int, requests: list[bytes]) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.missing = len(requests)
        self.noop_interval_s = 0.0
        self._decoder = FrameDecoder(FRAME_BODY_BYTES_MAX)
        self.sock.sendall(b"".join((Hello(name="idle").encode(), *requests)))

    def open(self) -> None:
        """Reads until all streams are open."""
        self.sock.settimeout(_SECONDS_MAX)
        while not self.noop_interval_s or self.missing:
            data = self.sock.recv(_READ_BYTES)
            if not data:
                sys.exit("the node has closed a connection")
            self._decoder.feed(data)
            for frame in self._decoder.next_frames(1 << 20):
                self._take(frame)
        self.sock.settimeout(None)

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.HELLO_OK:
            self.noop_interval_s = json.loads(bytes(frame.body))["noop_interval_s"]
        elif frame.opcode is Opcode.STREAM_OK:
            self.missing -= 1
        elif frame.opcode in (Opcode.ERROR, Opcode.STREAM_END):
            sys.exit(f"the node has refused: {bytes(frame.body)!r}")


def requests_of(feed_id: bytes, number: int, streams: int, partitions: int) -> Iterator[bytes]:
    """Yields the requests of one connection: neighbours of the partitions, each connection others."""
    for id in range(streams):
        partition = (number * streams + id) % partitions
        request = StreamRequest(feed_id, partition, FailoverLog(), None, 0, 0, None, None, Level.DISK)
        yield request.encode(id + 1)


def opened(port: int, feed_id: bytes, numbers: range, streams: int, partitions: int) -> list[Held]:
    """Returns all connections, with their streams."""
    held: list[Held] = []
    said_at = time.monotonic()
    for first in range(0, len(numbers), _AT_ONCE):
        some = [
            Held(port, list(requests_of(feed_id, number, streams, partitions)))
            for number in numbers[first : first + _AT_ONCE]
        ]
        for one in some:
            one.open()
        held += some
        if time.monotonic() - said_at > held[0].noop_interval_s / 2:  # a busy machine takes minutes to open all
            said_at = time.monotonic()
            for one in held:
                one.sock.sendall(_NOOP)
    return held


def hold(held: list[Held]) -> None:
    """Reads what comes and says NOOP on each connection, for ever."""
    poll = select.epoll()
    sockets = {one.sock.fileno(): one.sock for one in held}
    for number in sockets:
        poll.register(number, select.EPOLLIN)
    pause = held[0].noop_interval_s / 2 / len(held)
    order, turn, due = list(sockets.values()), 0, time.monotonic()
    while True:
        for number, _ in poll.poll(max(due - time.monotonic(), 0.005)):
            if not sockets[number].recv(_READ_BYTES):
                sys.exit("the node has closed a connection")
        while due <= time.monotonic():
            order[turn].sendall(_NOOP)
            turn, due = (turn + 1) % len(order), due + pause


def main() -> None:
    """Opens all, and holds them until it is ended."""
    feed_id = sys.argv[2]
    port, first, count, streams, partitions = map(int, (sys.argv[1], *sys.argv[3:]))
    held = opened(port, bytes.fromhex(feed_id), range(first, first + count), streams, partitions)
    print("ready", flush=True)
    hold(held)


if __name__ == "__main__":
    main()
