"""Sessions of a client that says what no SDK would: each error that a node can be made to answer, and traces."""

from __future__ import annotations

import itertools

import xxhash
from tests.conftest import RawClient

from tailrace.block import encode_block
from tailrace.errors import TailraceError
from tailrace.model import Level, Version
from tailrace.model.failover import FailoverLog
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.filters import StreamFilter
from tailrace.wire.frames import encode_frame
from tailrace.wire.messages import Get, Hello, HelloOk, Trace, Write, WriteFlag, encode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import CheckpointRequest, SegmentFetch, SegmentRelease
from tailrace.wire.stage_copy_messages import CopyAction, StageCopies, StageFetch
from tailrace.wire.stage_messages import Publish, StageBlock, StageSeal
from tailrace.wire.stream_messages import StreamRequest, encode_number
from tailrace_server.replication.voters import Voters, voters_to_json

FEED_ID = bytes(range(0x10, 0x20))
LOG_ID = bytes(range(0x20, 0x30))
NO_ID = bytes(range(0x30, 0x40))
STAGE_ID = bytes(range(0x40, 0x50))
PRODUCER_ID = 77
_PRODUCERS = itertools.count(100)
SYSTEM_FEED_ID = bytes(16)
REQUEST = StreamRequest(FEED_ID, 0, FailoverLog(), 0, 0, 0, 0, None, Level.DISK)


class _Stream:
    """A transport as `RawClient` uses it."""

    def __init__(self, transport):
        self._transport = transport

    async def send_all(self, data):
        self._transport.send(data)

    async def receive_some(self):
        return await self._transport.receive()


def connection_of(transport):
    """A client that sends what it is told to over a transport."""
    return RawClient(_Stream(transport))


class Asking:
    """A connection that asks one thing after the other, each by an id of its own."""

    def __init__(self, connection):
        self.connection = connection
        self._id = 0

    def next_id(self):
        self._id += 1
        return self._id

    async def frame(self, *frames):
        """Sends frames, and returns the next frame that comes."""
        await self.connection.send(*frames)
        return await self.connection.receive()

    async def json(self, opcode, value):
        return await self.frame(encode_json(opcode, value, self.next_id()))

    async def result(self, opcode, value):
        return decode_json((await self.json(opcode, value)).body, "RESULT")

    async def write(self, block, *, level=Level.DISK, flags=0, version=None, feed_id=FEED_ID, trace=None):
        id = self.next_id()
        body = Write.encode_fixed(feed_id, level, flags, version) + block
        before = b"" if trace is None else trace.encode(id)
        return await self.frame(before + encode_frame(Opcode.WRITE, body, id))


def block(key=b"k", value=b"v", number=0):
    """A block of one row: with a number of the producer PRODUCER_ID, or the only one of a producer of its own."""
    producer = PRODUCER_ID if number else next(_PRODUCERS)
    made = encode_block([key], [value], partition=0, producer_id=producer, producer_seq=number or 1, compress=False)
    return made.tobytes()


async def greeted(connection, **fields):
    asking = Asking(connection)
    await asking.frame(Hello(name="raw", **fields).encode())
    return asking


async def feed_of(asking, feed_id=FEED_ID, name="orders", **settings):
    value = {"name": name, "feed_id": feed_id.hex(), "partitions": 1, "exist_ok": False, **settings}
    return await asking.json(Opcode.CREATE_FEED, value)


async def errors(stage):
    """Errors of requests; the connection goes on. The last ones end a connection each."""
    async with stage.raw() as connection:
        asking = await greeted(connection)
        await feed_of(asking)
        await feed_of(asking, NO_ID)  # feed_exists
        await feed_of(asking, NO_ID, "none", partitions=0)  # failed
        await asking.json(Opcode.PARTITIONS, {"name": "none"})  # unknown_feed
        await _errors_of_writes(asking)
        await asking.frame(Get(FEED_ID, Level.QUORUM, [b"k"]).encode(asking.next_id()))  # not_durable
        await asking.frame(REQUEST._replace(level=Level.QUORUM).encode(asking.next_id()))  # not_durable
        await _errors_of_stages(asking)
        await _errors_of_segments(asking)
        await asking.json(Opcode.MEMBER, {"seqs": True})
        await asking.json(Opcode.PROMOTE, {"force": False})  # failed
    await _ends(stage)


async def _errors_of_writes(asking):
    await asking.write(block(), level=Level.QUORUM)  # not_durable
    await asking.write(block(), feed_id=SYSTEM_FEED_ID)  # forbidden
    await asking.write(block()[:-1])  # bad_block
    await asking.write(block(b"numbered", number=1))
    await asking.write(block(b"numbered", number=5))  # out_of_order
    await asking.write(block(b"numbered", number=1), flags=WriteFlag.RESEND)
    written = await asking.write(block())
    assert written.opcode is Opcode.WRITTEN, bytes(written.body)
    await asking.write(block(), flags=WriteFlag.IF_ABSENT)  # version_conflict
    await asking.write(block(b"none"), flags=WriteFlag.IF_PRESENT)
    await asking.write(block(b"none"), flags=WriteFlag.IF_VERSION, version=Version(0, NO_ID, 1))  # version_conflict


async def _errors_of_stages(asking):
    staged = encode_block([b"s"], [b"1"], partition=0)
    await asking.frame(b"".join(StageBlock.encode(FEED_ID, STAGE_ID, 0, 0, staged, asking.next_id())))
    await asking.frame(StageSeal(FEED_ID, NO_ID, 1, 1, 0).encode(asking.next_id()))  # unknown_stage
    publish = Publish(FEED_ID, "job", "raw", 1, (NO_ID,), (0,))
    await asking.json(Opcode.PUBLISH, publish.to_json())  # unknown_stage


async def _errors_of_segments(asking):
    request = CheckpointRequest(FEED_ID, 0, flush=True, state=True)
    told = await asking.result(Opcode.SEGMENT_CHECKPOINT, request.to_json())
    checkpoint, segment = bytes.fromhex(told["checkpoint"]), bytes.fromhex(told["segments"][0]["id"])
    for fetch in (
        SegmentFetch(checkpoint, segment, 0, 64),
        SegmentFetch(checkpoint, NO_ID, 0, 64),  # bad_segment
        SegmentFetch(NO_ID, NO_ID, 0, 64),  # unknown_checkpoint
    ):
        await asking.frame(fetch.encode(asking.next_id()))
    await asking.json(Opcode.SEGMENT_RELEASE, SegmentRelease(checkpoint).to_json())
    quorum = request._replace(level=Level.QUORUM)
    await asking.json(Opcode.SEGMENT_CHECKPOINT, quorum.to_json())  # not_durable


async def _ends(stage):
    """What ends a connection: ERROR with id 0."""
    async with stage.raw() as connection:
        await Asking(connection).frame(Hello((99,)).encode())  # protocol_error
    async with stage.raw() as connection:
        asking = await greeted(connection)
        await asking.json(Opcode.PARTITIONS, {"name": "n" * 5_000})  # too_large
    async with stage.raw() as connection:
        asking = await greeted(connection)
        await asking.frame(encode_error(TailraceError("a node's word")))  # protocol_error: only a node sends it
    session = "ab" * 16
    async with stage.raw() as earlier, stage.raw() as connection:
        await greeted(earlier, session=session)
        await greeted(connection, session=session)
        await earlier.receive()  # protocol_error: it is of an earlier connection


async def streams_by_hand(stage):
    """Streams that begin at a time, are closed, ask for what is gone, and barriers that are lost."""
    async with stage.raw() as connection:
        asking = await greeted(connection)
        await feed_of(asking)
        for number in range(3):
            await asking.write(block(b"%d" % number))
        id = asking.next_id()
        await connection.send(REQUEST._replace(seq=None, since_us=1).encode(id))
        await until(connection, Opcode.SNAPSHOT_END)
        await connection.send(encode_number(Opcode.CREDIT, 100))
        await connection.send(encode_frame(Opcode.BARRIER, b"cookie", 0))
        await until(connection, Opcode.BARRIER_REACHED)
        await connection.send(encode_frame(Opcode.STREAM_CLOSE, b"", id))
        await until(connection, Opcode.STREAM_END)
        none = REQUEST._replace(filter=StreamFilter(b"none"))
        await connection.send(none.encode(asking.next_id()))
        await until(connection, Opcode.SEQ_ADVANCED)
        await until(connection, Opcode.ROUND_COMPLETE)
        ahead = FailoverLog([(NO_ID, 9, 0)])
        behind = REQUEST._replace(log=ahead, seq=9, snapshot_first=9, snapshot_last=9)
        for request in (behind, REQUEST._replace(feed_id=NO_ID), REQUEST._replace(partition=7)):
            await asking.frame(request.encode(asking.next_id()))
        await connection.send(encode_frame(Opcode.NOOP, b"", 0))


async def until(connection, opcode):
    while (frame := await connection.receive()).opcode is not opcode:
        assert frame.opcode is not Opcode.ERROR, bytes(frame.body)
    return frame


async def traces(stage):
    """The contexts of sampled writes: with a write, and on a stream."""
    trace = Trace(bytes(range(1, 17)), bytes(range(1, 9)), 1)
    async with stage.raw() as connection, stage.raw() as reading:
        asking = await greeted(connection, takes_traces=True)
        await feed_of(asking)
        await greeted(reading, takes_traces=True)
        await reading.send(REQUEST.encode(1))
        await until(reading, Opcode.STREAM_OK)
        await asking.write(block(), trace=trace)
        await until(reading, Opcode.SNAPSHOT_END)


async def bounds(stage):
    """What a node refuses that has its bounds at their least: one stream, no space."""
    async with stage.raw() as connection:
        asking = await greeted(connection)
        await feed_of(asking)
        await asking.frame(REQUEST.encode(asking.next_id()))
        for number in range(2):
            await connection.send(REQUEST._replace(partition=number).encode(asking.next_id()))
        await until_error(connection)


async def full(stage):
    """A node whose disk is nearly full."""
    async with stage.raw() as connection:
        asking = await greeted(connection)
        await feed_of(asking)
        await asking.write(block())


async def until_error(connection):
    while (await connection.receive()).opcode is not Opcode.ERROR:
        pass


async def branches(stage):
    """A node that has begun a new branch: what was written on the one before may be lost."""
    async with stage.raw() as connection:
        asking = await greeted(connection)
        told = await asking.result(Opcode.PARTITIONS, {"name": "orders"})
        [partition] = told["partitions"]
        earlier = bytes.fromhex(partition["log"][-1][0])
        version = Version(0, earlier, partition["high_seq"] + 100)
        await asking.write(block(), flags=WriteFlag.IF_VERSION, version=version)  # version_lost


async def stage_copies(stage):
    """What a member of a set asks the leader for: sealed stages, and how far it has come."""
    async with stage.raw() as connection:
        await connection.send(Hello(name="member", of_node=True).encode())
        cluster_id = bytes.fromhex(HelloOk.decode((await connection.receive()).body).cluster_id)
        asking = Asking(connection)
        await feed_of(asking)
        staged = encode_block([b"s"], [b"1"], partition=0)
        await asking.frame(b"".join(StageBlock.encode(FEED_ID, STAGE_ID, 0, 0, staged, asking.next_id())))
        checksum = xxhash.xxh3_64_intdigest(staged.head)
        await asking.frame(StageSeal(FEED_ID, STAGE_ID, 1, 1, checksum).encode(asking.next_id()))
        await asking.frame(StageFetch(FEED_ID, STAGE_ID, 0).encode(asking.next_id()))
        for action in (CopyAction.FIND, CopyAction.TAKE):  # forbidden: the address is no member's
            copies = StageCopies(action, cluster_id, FEED_ID, (STAGE_ID,), "10.0.0.1:4700")
            await asking.json(Opcode.STAGE_COPIES, copies.to_json())
        told = {"cluster_id": cluster_id.hex(), "feed_ids": [FEED_ID.hex()]}
        await asking.json(Opcode.ACCEPTED_SEQS, told)


async def promises(stage):
    """What a new member of a set answers to another one that wants to lead."""
    own, other, _ = stage.told["members"]
    told = {"cluster_id": NO_ID.hex(), "members": stage.told["members"], "voters": voters_to_json(Voters())}
    async with stage.raw() as connection:
        await connection.send(Hello(name=f"member {other}", of_node=True).encode())
        await connection.receive()
        asking = Asking(connection)
        await asking.json(Opcode.MEMBER, told | {"seqs": True, "candidate": {"held_term": 0, "held": 0}})
        promise = {"address": other, "handover": False, "last_led": None, "by_itself": False}
        for term, members in ((2, told["members"]), (2, told["members"]), (3, [own])):  # the last: another list
            await asking.json(Opcode.PROMISE, told | promise | {"term": term, "members": members})
        await asking.json(Opcode.MEMBER, told)
        await asking.json(Opcode.ACCEPTED_SEQS, {"cluster_id": NO_ID.hex(), "feed_ids": []})  # not_leader
        await asking.json(Opcode.HANDOVER, {"to": other})
        await asking.json(Opcode.MEMBER_CHANGE, {"action": "add", "name": "10.0.0.1:4700"})


async def forgotten(stage):
    """A node that has forgotten producers: what one of them sends again may have been written."""
    async with stage.raw() as connection:
        asking = await greeted(connection)
        await asking.write(block(number=2), flags=WriteFlag.RESEND)  # outcome_unknown
        await asking.write(block(number=1))


SESSIONS = {
    each.__name__: each
    for each in (errors, streams_by_hand, traces, bounds, full, branches, stage_copies, promises, forgotten)
}
