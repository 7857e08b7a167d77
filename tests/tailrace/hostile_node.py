"""A node that answers most requests as a node does, and the others with whatever a hostile one could say."""

from __future__ import annotations

import json

import trio

from tailrace.block import encode_block
from tailrace.model import EndReason, Version
from tailrace.model.failover import SEQ_MAX, FailoverLog
from tailrace.wire.bodies import encode_json
from tailrace.wire.failures import _CODES
from tailrace.wire.frames import FRAME_HEADER_BYTES, FrameDecoder, encode_frame
from tailrace.wire.messages import Get, Got, HelloOk, Write, Written
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stage_messages import Staged
from tailrace.wire.stream_messages import (
    ResumeAnswer,
    RollBack,
    SnapshotStartMessage,
    StreamEnd,
    StreamOk,
    StreamRequest,
    encode_number,
    encode_seq,
)

FEED, BRANCH, OTHER = b"f" * 16, b"u" * 16, b"v" * 16
LOG = FailoverLog([(BRANCH, 1, 0)])
FORKED = FailoverLog([(OTHER, 2, 1), (BRANCH, 1, 0)])
PARTITIONS = 2
ROWS = 3
# What a field of JSON may be instead.
VALUES = [
    None,
    True,
    -1,
    0,
    1,
    1.5,
    1e400,
    SEQ_MAX,
    SEQ_MAX + 1,
    1 << 70,
    "",
    "x",
    "00",
    "zz" * 16,
    [],
    [[]],
    {},
    {"a": 1},
]
INFO = {
    "id": 0,
    "hash_first": 0,
    "hash_last": (1 << 32) - 1,
    "state": "active",
    "term": 1,
    "leader": "",
    "replicas": [],
}
FEED_INFO = {
    "name": "orders",
    "feed_id": FEED.hex(),
    "partitions": PARTITIONS,
    "keyspace": "hash",
    "retention": "compact",
    "history_age_s": None,
    "history_bytes": None,
    "tombstone_age_s": 1.0,
    "replication": "stream",
}
STATUS = {"software": "x", "node_id": "00" * 16, "cluster_id": "00" * 16, "healthy": True, "uptime_s": 1.0}


class HostileNode:
    """What connections to one node say. ``lies``: how likely each answer is another one than a node's."""

    def __init__(self, rnd, lies):
        self.random = rnd
        self.lies = lies

    def answer(self, frame):
        """The bytes that answer a frame; None: it hangs up."""
        out = b""
        for right in self.right(frame):
            said = right if self.random.random() >= self.lies else self.lie(right)
            if said is None:
                return None
            out += said
        return out

    def right(self, frame):
        """The frames that a node answers with."""
        opcode, id = frame.opcode, frame.id
        match opcode:
            case Opcode.HELLO:
                yield HelloOk(1, "00" * 16, "00" * 16, "x", 1 << 25, 10.0, ("memory", "disk", "quorum")).encode()
            case Opcode.PARTITIONS:
                infos = [
                    {**INFO, "id": number, "high_seq": ROWS, "durable_seq": ROWS, "log": LOG.to_json()}
                    for number in range(PARTITIONS)
                ]
                yield encode_json(Opcode.RESULT, {"feed": FEED_INFO, "partitions": infos}, id)
            case Opcode.LIST_FEEDS:
                yield encode_json(Opcode.RESULT, {"feeds": [FEED_INFO]}, id)
            case Opcode.STATUS:
                yield encode_json(Opcode.RESULT, STATUS, id)
            case Opcode.PUBLISH:
                yield encode_json(Opcode.RESULT, {"written": [[0, BRANCH.hex(), 1, 2]], "skipped": [1]}, id)
            case Opcode.EXPLAIN_RESUME:
                answer = ResumeAnswer(StreamOk(0, 0, LOG, ROWS), LOG, ROWS, ROWS)
                yield encode_json(Opcode.RESULT, answer.to_json(), id)
            case Opcode.WRITE:
                block = Write.decode(frame.body).block
                yield Written(block[0] % PARTITIONS, BRANCH, 1, 1).encode(id)
            case Opcode.GET:
                keys = Get.decode(frame.body).keys
                yield Got([(Version(0, BRANCH, 2), 1, b"v"), *[None] * (len(keys) - 1)]).encode(id)
            case Opcode.STAGE_BLOCK:
                yield Staged(1).encode(id)
            case Opcode.BARRIER:
                yield encode_frame(Opcode.BARRIER_REACHED, bytes(frame.body))
            case Opcode.STREAM_REQUEST:
                yield from self.stream(StreamRequest.decode(frame.body), id)
            case Opcode.NOOP | Opcode.CREDIT | Opcode.STREAM_CLOSE:
                pass
            case _:
                yield encode_json(Opcode.RESULT, {}, id)

    def stream(self, asked, id):
        partition, seq = asked.partition, asked.seq or 0
        if self.random.random() < 0.3 and seq:
            yield RollBack(partition, self.random.randrange(seq + 1), FORKED, "because").encode(id)
            return
        yield StreamOk(partition, seq, LOG, ROWS).encode(id)
        if seq < ROWS:
            yield SnapshotStartMessage(partition, True, BRANCH, seq, ROWS, 0).encode(id)
            count = ROWS - seq
            block = encode_block([b"%d" % row for row in range(count)], [b"v"] * count, partition=partition)
            yield encode_frame(Opcode.BLOCK, block.stamped(seq + 1, 1).tobytes(), id)
            yield encode_seq(Opcode.SNAPSHOT_END, partition, ROWS, id)
            yield encode_number(Opcode.ROUND_COMPLETE, 1)
        if asked.end_seq is not None or self.random.random() < 0.3:
            reason = EndReason.END_REACHED if asked.end_seq is not None else self.random.choice(list(EndReason))
            yield StreamEnd(partition, reason, "because").encode(id)

    # Lies

    def lie(self, right):
        [frame] = FrameDecoder().receive_data(right)
        opcode, _, id, body = frame
        kind = self.random.choice([self.other_body, self.other_body, self.other_body, self.other_frame, self.error])
        return kind(opcode, id, bytes(body))

    def other_body(self, opcode, id, body):
        if body[:1] == b"{":
            return encode_frame(opcode, json.dumps(self.twisted(json.loads(body))).encode(), id)
        changed = bytearray(body)
        for _ in range(self.random.choice((1, 1, 2, 8))):
            if changed:
                changed[self.random.randrange(len(changed))] = self.random.choice((0, 1, 0x7F, 0x80, 0xFF))
        cut = self.random.choice((len(changed), len(changed), self.random.randrange(len(changed) + 1)))
        return encode_frame(opcode, bytes(changed[:cut]) + bytes(self.random.choice((0, 0, 1, 16))), id)

    def twisted(self, value):
        """``value`` with one thing in it that is not what it was."""
        if self.random.random() < 0.2 or not isinstance(value, dict | list) or not value:
            return self.random.choice(VALUES)
        value = value.copy()
        where = self.random.choice(list(value)) if isinstance(value, dict) else self.random.randrange(len(value))
        if self.random.random() < 0.2:
            del value[where]
        else:
            value[where] = self.twisted(value[where])
        return value

    def other_frame(self, opcode, id, body):
        right = encode_frame(opcode, body, id)
        match self.random.randrange(8):
            case 0:
                return None
            case 1:
                return b""
            case 2:
                return right + right
            case 3:
                return right[: self.random.randrange(len(right))] + bytes(FRAME_HEADER_BYTES)
            case 4:
                return encode_frame(opcode, body, self.random.choice((0, id ^ 1, 0xFFFFFFFF)))
            case 5:
                return encode_frame(self.random.choice(list(Opcode)), self.random.randbytes(24), id)
            case _:
                return encode_frame(self.random.choice(list(Opcode)), body, id)

    def error(self, opcode, id, body):
        value = {"code": self.random.choice([*_CODES, "newer", None]), "message": self.random.choice(["no", None, 7])}
        fields = ("current", "outcome", "leader", "first_seq", "first_batch", "reason", "ranges", "expected")
        for name in self.random.sample(fields, self.random.randrange(len(fields) + 1)):
            value[name] = self.random.choice([*VALUES, [0, "00", 1], [[0, "00", 1, 1]], "node-9:1"])
        return encode_json(Opcode.ERROR, value, self.random.choice((id, id, 0)))


class Connection:
    """A transport in memory to a hostile node."""

    backlog_bytes = 0
    on_drained = None
    peer = "hostile:1"

    def __init__(self, node):
        self._node = node
        self._decoder = FrameDecoder()
        self._said = b""
        self._closed = False
        self._news = trio.Event()

    def send(self, *buffers):
        for frame in self._decoder.receive_data(b"".join(map(bytes, buffers))):
            answer = self._node.answer(frame)
            if answer is None:
                self._closed = True
            elif not self._closed:
                self._said += answer
        self._news.set()

    async def receive(self):
        while not self._said and not self._closed:
            self._news = trio.Event()
            await self._news.wait()
        await trio.lowlevel.checkpoint()
        said, self._said = self._said, b""
        return said

    async def run(self):
        await trio.sleep_forever()

    def finish(self):
        self.close()

    def close(self):
        self._closed = True
        self._said = b""
        self._news.set()
