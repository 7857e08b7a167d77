"""What a frame means to the present program, as JSON; and the frame that it makes of the meaning again.

Recordings store the meaning that their release read. So a layout whose fields have changed places, and a member that
is read under another name, are found, though the bytes can still be read.
"""

from __future__ import annotations

import enum
import json
from typing import NamedTuple

from tailrace.block import Block
from tailrace.errors import TailraceError
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Positions
from tailrace.requests import replies
from tailrace.wire import (
    consumer_messages,
    messages,
    progress,
    push_messages,
    replica_messages,
    segment_messages,
    stage_copy_messages,
)
from tailrace.wire import stage_messages as stages
from tailrace.wire import stream_messages as streams
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.failures import error_to_wire
from tailrace.wire.frames import Frame, encode_frame
from tailrace.wire.opcodes import Opcode
from tailrace_server.replication.peers import seen_from_json, seen_to_json, seqs_from_json
from tailrace_server.replication.promises import Promise, Promised
from tailrace_server.replication.voters import voters_field
from tailrace_server.state import last_batches


class Codec(NamedTuple):
    """How a body is read, to a value; and how the value becomes a frame again, None if nothing writes it so."""

    read: object
    write: object = None


def _class(kind):
    return Codec(kind.decode, lambda value, id: value.encode(id))


def _json(name):
    return Codec(lambda body: decode_json(body, name), lambda value, id: encode_json(Opcode[name], value, id))


def _object(kind):
    """The codec of a request whose class has ``to_json``."""
    name = {
        segment_messages.CheckpointRequest: "SEGMENT_CHECKPOINT",
        segment_messages.SegmentRelease: "SEGMENT_RELEASE",
        stages.Publish: "PUBLISH",
        stage_copy_messages.StageCopies: "STAGE_COPIES",
    }[kind]
    return Codec(kind.decode, lambda value, id: encode_json(Opcode[name], value.to_json(), id))


def _seq(name):
    return Codec(
        lambda body: streams.decode_seq(body, name), lambda value, id: streams.encode_seq(Opcode[name], *value, id)
    )


def _number(name):
    return Codec(
        lambda body: streams.decode_number(body, name), lambda value, id: streams.encode_number(Opcode[name], value, id)
    )


def _hold(opcode):
    return Codec(
        lambda body: consumer_messages.Hold.decode(body, opcode.name), lambda value, id: value.encode(opcode, id)
    )


def _cookie(name):
    return Codec(
        lambda body: streams.decode_cookie(body, name), lambda value, id: encode_frame(Opcode[name], value, id)
    )


def _nothing(name):
    def read(body):
        assert not body, f"{name} has a body"

    return Codec(read, lambda value, id: encode_frame(Opcode[name], b"", id))


def _block_after(size):
    """Reads a message whose last member is a block."""

    def read(kind):
        return lambda body: [*kind.decode(body)[:size], Block.parse(kind.decode(body)[size])]

    return read


def _sinks_of(body):
    told = stages.SinksTold.decode(body)
    return {"partition": told.partition, "seq": told.seq, "sinks": last_batches.from_json(told.value)}


def _written_sinks(value):
    return stages.SinksTold(value["partition"], value["seq"], last_batches.to_json(value["sinks"]))


def _write_of_write(value, id):
    feed_id, level, flags, branch, seq, block = value
    number = messages.NODES_LEVEL if level is None else int(level)
    version = messages.Version(0, branch, seq)
    fixed = messages.Write.encode_fixed(feed_id, number, flags, version)
    return encode_frame(Opcode.WRITE, fixed + block.tobytes(), id)


CODECS = {
    Opcode.HELLO: Codec(messages.Hello.decode, lambda value, id: value.encode()),
    Opcode.HELLO_OK: Codec(messages.HelloOk.decode, lambda value, id: value.encode()),
    Opcode.NOOP: _nothing("NOOP"),
    Opcode.ERROR: Codec(messages.decode_error, messages.encode_error),
    Opcode.TRACE: _class(messages.Trace),
    Opcode.WRITE: Codec(_block_after(5)(messages.Write), _write_of_write),
    Opcode.WRITTEN: Codec(messages.Written.decode, lambda value, id: messages.Written(*value).encode(id)),
    Opcode.GET: _class(messages.Get),
    Opcode.STAGE_BLOCK: Codec(
        _block_after(4)(stages.StageBlock), lambda value, id: b"".join(stages.StageBlock.encode(*value, id))
    ),
    Opcode.STAGED: _class(stages.Staged),
    Opcode.STAGE_SEAL: _class(stages.StageSeal),
    Opcode.PUBLISH: _object(stages.Publish),
    Opcode.SINKS: Codec(_sinks_of, lambda value, id: _written_sinks(value).encode(id)),
    Opcode.STAGE_COPIES: _object(stage_copy_messages.StageCopies),
    Opcode.STAGE_FETCH: _class(stage_copy_messages.StageFetch),
    Opcode.STREAM_REQUEST: _class(streams.StreamRequest),
    Opcode.EXPLAIN_RESUME: Codec(
        streams.StreamRequest.decode, lambda value, id: encode_json(Opcode.EXPLAIN_RESUME, value.to_json(), id)
    ),
    Opcode.PROGRESS: Codec(
        progress.Progress.decode, lambda value, id: encode_json(Opcode.PROGRESS, value.to_json(), id)
    ),
    Opcode.CONSUMER_JOIN: _class(consumer_messages.Join),
    Opcode.CONSUMER_COMMIT: _class(consumer_messages.Commit),
    Opcode.CONSUMER_CHANGE: _class(consumer_messages.Change),
    Opcode.CONSUMER_STATUS: _json("CONSUMER_STATUS"),
    Opcode.CONSUMER_RESET: _class(consumer_messages.Reset),
    **{opcode: _hold(opcode) for opcode in (Opcode.CONSUMER_RENEW, Opcode.CONSUMER_RELEASE)},
    Opcode.STREAM_OK: _class(streams.StreamOk),
    Opcode.ROLLBACK: _class(streams.RollBack),
    Opcode.STREAM_CLOSE: _nothing("STREAM_CLOSE"),
    Opcode.STREAM_END: _class(streams.StreamEnd),
    Opcode.SNAPSHOT_START: _class(streams.SnapshotStartMessage),
    Opcode.BLOCK: Codec(Block.parse, lambda value, id: encode_frame(Opcode.BLOCK, value.tobytes(), id)),
    Opcode.SNAPSHOT_END: _seq("SNAPSHOT_END"),
    Opcode.SEQ_ADVANCED: _seq("SEQ_ADVANCED"),
    Opcode.ROUND_COMPLETE: _number("ROUND_COMPLETE"),
    Opcode.CREDIT: _number("CREDIT"),
    Opcode.BARRIER: _cookie("BARRIER"),
    Opcode.BARRIER_REACHED: _cookie("BARRIER_REACHED"),
    Opcode.BARRIER_LOST: _cookie("BARRIER_LOST"),
    Opcode.REPLICA_ACK: _class(replica_messages.ReplicaAck),
    Opcode.LEADER_SEQS: _class(replica_messages.LeaderSeqs),
    Opcode.PRODUCERS: _class(replica_messages.Producers),
    Opcode.LEADER_CHECK: _number("LEADER_CHECK"),
    Opcode.LEADER_CONFIRM: _number("LEADER_CONFIRM"),
    Opcode.PROMISE: Codec(lambda body: Promise.from_json(decode_json(body, "PROMISE"))),
    Opcode.SEGMENT_CHECKPOINT: _object(segment_messages.CheckpointRequest),
    Opcode.SEGMENT_FETCH: _class(segment_messages.SegmentFetch),
    Opcode.SEGMENT_RELEASE: _object(segment_messages.SegmentRelease),
    Opcode.SEGMENT_OFFER: _class(push_messages.SegmentOffered),
    Opcode.SEGMENT_ACCEPT: _class(push_messages.SegmentAccept),
    Opcode.SEGMENT_DECLINE: _class(push_messages.SegmentDecline),
    Opcode.SEGMENT_TRANSIT: Codec(
        lambda body: push_messages.SegmentTransit.decode(0, body),
        lambda value, id: push_messages.transit_header(value.number, value.offset, len(value.data), id) + value.data,
    ),
    Opcode.SEGMENT_ACK: _class(push_messages.SegmentAck),
    # The handlers read their members, and the replay of the sessions tests them.
    **{
        opcode: _json(opcode.name)
        for opcode in (
            Opcode.CREATE_FEED,
            Opcode.LIST_FEEDS,
            Opcode.DROP_FEED,
            Opcode.PARTITIONS,
            Opcode.STATUS,
            Opcode.SET_FEED,
            Opcode.CREATE_TOKEN,
            Opcode.LIST_TOKENS,
            Opcode.REVOKE_TOKEN,
            Opcode.MEMBER,
            Opcode.PROMOTE,
            Opcode.HANDOVER,
            Opcode.TAKE_OVER,
            Opcode.ACCEPTED_SEQS,
            Opcode.MEMBER_CHANGE,
        )
    },
}


def _partitions_of(value):
    return [replies.partition_map(value), replies.partition_infos(value)]


def _status_of(value):
    status = replies.node_status(value)._asdict()
    del status["details"]  # the value itself
    return status


def _promised_of(value):
    """The answer, with the member by which a candidate counts it."""
    return {"promised": value["promised"], "term": value["term"], **Promised.from_json(value, "PROMISE")._asdict()}


def _seqs_of(value):
    what = "the answer"
    return [seqs_from_json(value.get("seqs"), what), voters_field(value, what)]


# How the answer to a JSON request is read; each gives a value. All other answers are shown as they are.
RESULTS = {
    Opcode.LIST_FEEDS: replies.feed_infos,
    Opcode.PARTITIONS: _partitions_of,
    Opcode.STATUS: _status_of,
    Opcode.EXPLAIN_RESUME: streams.ResumeAnswer.of_json,
    Opcode.SET_FEED: replies.feed_info,
    Opcode.LIST_TOKENS: replies.token_infos,
    Opcode.PUBLISH: stages.published_from_json,
    Opcode.STAGE_COPIES: stage_copy_messages.StageCopiesResult.from_json,
    Opcode.SEGMENT_CHECKPOINT: segment_messages.PartitionCheckpoint.from_json,
    Opcode.MEMBER: seen_from_json,
    Opcode.PROMISE: _promised_of,
    Opcode.ACCEPTED_SEQS: _seqs_of,
}
# The RESULT that a value becomes again.
WRITTEN_RESULTS = {
    Opcode.EXPLAIN_RESUME: lambda value: value.to_json(),
    Opcode.STAGE_COPIES: lambda value: value.to_json(),
    Opcode.SEGMENT_CHECKPOINT: lambda value: value.to_json(),
    Opcode.MEMBER: seen_to_json,
    Opcode.PUBLISH: lambda value: stages.published_to_json(*value[:2], more=value.more),
}


def read(opcode, body, request=None):
    """The value of a body; ``request`` is the opcode and the body that it answers. None: it cannot be told."""
    body = memoryview(body)
    asked, question = request or (None, None)
    if opcode is Opcode.RESULT:
        value = decode_json(body, "RESULT")
        return RESULTS.get(asked, lambda found: found)(value)
    if opcode is Opcode.GOT and asked is Opcode.GET:
        return messages.Got.decode(body, messages.Get.decode(memoryview(question)).keys)
    if opcode is Opcode.SEGMENT_DATA and asked is Opcode.SEGMENT_FETCH:
        fetch = segment_messages.SegmentFetch.decode(question)
        return bytes(fetch.decode_answer(Frame(opcode, 0, 0, body)))
    if opcode is Opcode.STAGE_DATA and asked is Opcode.STAGE_FETCH:
        fetch = stage_copy_messages.StageFetch.decode(question)
        return stage_copy_messages.StageData.decode(Frame(opcode, 0, 0, body), fetch)
    codec = CODECS.get(opcode)
    return None if codec is None else codec.read(body)


def written(opcode, value, id, request=None):
    """The frame of a value; None if nothing in the product writes it from such a value."""
    asked, _ = request or (None, None)
    if opcode is Opcode.RESULT:
        if asked in RESULTS and asked not in WRITTEN_RESULTS:
            return None
        return encode_json(opcode, WRITTEN_RESULTS.get(asked, lambda found: found)(value), id)
    if opcode is Opcode.GOT:
        items = [None if item is None else (item.version, item.timestamp, item.value) for item in value]
        return messages.Got(items).encode(id)
    if opcode is Opcode.SEGMENT_DATA:
        return segment_messages.data_header(len(value), id) + value
    codec = CODECS.get(opcode)
    if codec is None:
        return None if value is None else value.encode(id)
    return None if codec.write is None else codec.write(value, id)


def meaning_of(opcode, body, request=None):
    """The value of a body as JSON; of a body that this program refuses, its error."""
    try:
        return to_json(read(opcode, body, request))
    except TailraceError as error:
        return {"refused": type(error).__name__}


def to_json(value):
    """A value of the product as JSON: members by name, bytes in hex, blocks as their rows."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, int | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, FailoverLog):
        return value.to_json()
    if isinstance(value, Positions):
        return str(value)
    if isinstance(value, Block):
        return _block_to_json(value)
    if isinstance(value, Exception):
        return {**error_to_wire(value), "class": type(value).__name__}
    if hasattr(value, "_asdict"):
        return {name: to_json(member) for name, member in value._asdict().items()}
    if hasattr(value, "__dataclass_fields__"):
        return {name: to_json(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {name if isinstance(name, str) else to_json_key(name): to_json(member) for name, member in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(member) for member in (sorted(value) if isinstance(value, set | frozenset) else value)]
    raise TypeError(f"{value!r} has no form in JSON")


def to_json_key(name):
    return json.dumps(to_json(name))


def _block_to_json(block):
    header = block.header._asdict()
    columns = block.open_columns()
    rows = [
        [key.hex(), None if value is None else value.hex(), seq, timestamp]
        for key, value, seq, timestamp in zip(
            columns.keys(), columns.values(), columns.seqs(), columns.timestamps(), strict=True
        )
    ]
    for name in ("stored_bytes", "raw_bytes", "body_sum"):  # of the packing, not of the meaning
        del header[name]
    return {**header, "rows": rows}
