"""What a node does with each frame of a client: functions of a connection and a frame, by opcode in ``HANDLERS``.

Those of streams are in ``stream_requests``. An error of a request (any TailraceError) becomes its answer; a
ProtocolError ends the connection. Requests that need the by-key index are handled at once where it is nearly level with
the tree, else step by step in a task of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from tailrace import _version
from tailrace.block import Block
from tailrace.errors import (
    FeedExists,
    Forbidden,
    NoSpace,
    Overloaded,
    ProtocolError,
    TailraceError,
    UnknownFeed,
    Unreachable,
)
from tailrace.model import Level, Version
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.frames import Frame
from tailrace.wire.messages import PROTOCOL_VERSION, Get, Got, Hello, HelloOk, Write, WriteFlag, encode_error
from tailrace.wire.opcodes import Opcode
from tailrace_server.blocks import detached
from tailrace_server.feed import info_to_json
from tailrace_server.frames import written
from tailrace_server.intake.conditions import CONDITIONS
from tailrace_server.lookup import Lookup
from tailrace_server.partition import Partition
from tailrace_server.publishing import stage_requests
from tailrace_server.replication import requests as of_members
from tailrace_server.replication.clusters import require_cluster
from tailrace_server.replication.role import Role
from tailrace_server.replication.serving import on_leader_confirm, on_replica_ack
from tailrace_server.segment import NotCached, Read, Reads, SegmentDamaged, SegmentFile
from tailrace_server.status import partition_map
from tailrace_server.stream_requests import (
    on_barrier,
    on_credit,
    on_explain_resume,
    on_stream_close,
    on_stream_request,
)

if TYPE_CHECKING:
    from tailrace_server.connection import Connection
    from tailrace_server.node import Node

# One turn of catching up with the by-key index, or of looking keys up.
STEP_SECONDS = 0.002

# Does a part of something, until the given function says that time is up; True once all is done.
_Step = Callable[[Callable[[], bool]], bool]


def _on_hello(connection: Connection, frame: Frame) -> None:
    if connection.greeted:
        raise ProtocolError("a second HELLO")
    hello = Hello.decode(frame.body)
    if PROTOCOL_VERSION not in hello.versions:
        raise ProtocolError(
            f"the client speaks versions {list(hello.versions)} of the protocol, this node {PROTOCOL_VERSION}"
        )
    if hello.token is not None:
        raise Forbidden("a token was given, and this node knows no tokens: connect without one")
    node = connection.node
    limits, identity = node.config.limits, node.identity
    connection.name = hello.name
    connection.rounds.window_bytes = min(hello.window_bytes, limits.window_bytes_max)
    connection.decoder.body_bytes_max = limits.frame_body_bytes_max
    connection.greeted = True
    if hello.session:
        connection.session = hello.session
        node.begin_session(connection)
    levels = ("memory", "disk", "quorum") if node.in_set else ("memory", "disk")
    connection.answer(
        HelloOk(
            PROTOCOL_VERSION,
            identity.node_id.hex(),
            identity.cluster_id.hex(),
            f"tailrace/{_version.__version__}",
            limits.frame_body_bytes_max,
            limits.noop_interval_s,
            levels,
            connection.rounds.window_bytes,
            node.role.value,
            node.term,
            node.leader,
            node.config.cluster,
        ).encode()
    )


def _on_noop(connection: Connection, frame: Frame) -> None:
    """Nothing: it was heard."""


def _on_status(connection: Connection, frame: Frame) -> None:
    connection.answer(encode_json(Opcode.RESULT, connection.node.status(), frame.id))


# Feeds


def _on_create_feed(connection: Connection, frame: Frame) -> None:
    node = connection.node
    node.require_writable()
    before = node.system_seqs()
    try:
        feed = node.feed_changes.create(decode_json(frame.body, "CREATE_FEED"))
    except FeedExists as error:
        _answer_of_feeds(connection, encode_error(error, frame.id), frame.id, is_written=False)
        return
    for partition in feed.partitions:
        node.adopt(partition)
    data = encode_json(Opcode.RESULT, info_to_json(feed.info), frame.id)
    _answer_of_feeds(connection, data, frame.id, is_written=node.system_seqs() != before)


def _on_drop_feed(connection: Connection, frame: Frame) -> None:
    value = decode_json(frame.body, "DROP_FEED")
    try:
        feed_id = bytes.fromhex(value["feed_id"])
    except (KeyError, TypeError, ValueError):
        raise ProtocolError("DROP_FEED: field 'feed_id' is missing, or not hex") from None
    node = connection.node
    node.require_writable()
    is_here = feed_id in node.feeds
    node.feed_changes.drop(feed_id)
    _answer_of_feeds(connection, encode_json(Opcode.RESULT, {}, frame.id), frame.id, is_written=is_here)


def _answer_of_feeds(connection: Connection, data: bytes, id: int, *, is_written: bool) -> None:
    """``is_written``: the list of feeds has a row that says so. Else a later leader may know better."""
    node = connection.node
    if node.in_set and not is_written:
        connection.answer_confirmed(node.system_seqs(), data, id)
    else:
        connection.answer_when(node.safest_level, node.system_seqs(), data, id)


def _on_list_feeds(connection: Connection, frame: Frame) -> None:
    node = connection.node
    feeds = [info_to_json(feed.info) for feed in node.feeds]
    connection.answer(encode_json(Opcode.RESULT, {"feeds": feeds}, frame.id))


def _on_partitions(connection: Connection, frame: Frame) -> None:
    value = decode_json(frame.body, "PARTITIONS")
    node = connection.node
    try:
        feed = node.feeds.named(str(value.get("name")))
    except UnknownFeed as error:
        if value.get("replica") is not True:
            raise
        connection.answer_error(error, frame.id)  # at once: a majority may need the replica to be heard
        return
    connection.answer(encode_json(Opcode.RESULT, partition_map(node, feed), frame.id))


# Writes and gets


def _on_write(connection: Connection, frame: Frame) -> None:
    node = connection.node
    if node.refuses_writes:  # and need not know of the feed
        node.require_writable()
    write = Write.decode(frame.body)
    block = detached(Block.parse(write.block))
    partition = node.feeds.partition(write.feed_id, block.header.partition)
    if write.level == Level.QUORUM:
        node.require_set()
    if not write.flags & CONDITIONS:
        _take(connection, frame.id, write, partition, block)
        return
    if block.header.rows != 1:
        raise ProtocolError("WRITE: a condition is for a block of one row")
    reads = Reads()
    _wait(
        connection,
        frame.id,
        lambda out_of_time: partition.keys.catch_up(partition.tree, out_of_time),
        lambda: _take_now(connection, frame.id, write, partition, block, reads.read),
    )


def _take_now(connection: Connection, id: int, write: Write, partition: Partition, block: Block, read: Read) -> None:
    """As ``_take``, of what had to wait: the node may have stopped leading meanwhile, or the connection ended."""
    if connection.is_closing:  # its client may have written more on another one
        raise Unreachable("the connection has ended")
    connection.node.require_writable()
    _take(connection, id, write, partition, block, read)


def _take(
    connection: Connection, id: int, write: Write, partition: Partition, block: Block, read: Read = SegmentFile.read
) -> None:
    node, flags = connection.node, write.flags
    committer = node.committer
    if committer.failure is not None:
        raise committer.failure.with_traceback(None)  # it would grow with each
    connection.writes = True
    if node.space.low or (node.memory.is_full and node.memory.stuck):
        raise NoSpace(node.space.low or node.memory.stuck)
    try:
        versions, fresh = partition.take(
            block,
            node.journal,
            now_us=node.clock.wall_us(),
            now=node.now,
            flags=flags,
            if_version=Version(partition.id, write.branch, write.seq) if flags & WriteFlag.IF_VERSION else None,
            read=read,
        )
    except TailraceError as error:
        if not flags & CONDITIONS:
            raise
        if isinstance(error, SegmentDamaged):
            node.found_damage(error)
        # What a refusal tells of other writes must not be lost any more when it is told.
        _answer_unwritten(connection, id, write, partition, encode_error(error, id))
        return
    if fresh:
        committer.note(partition)
        node.flusher.note(partition)
        node.compactor.wrote()
    if write.level == Level.MEMORY:
        connection.answer(written(versions, id))
    elif write.level == Level.DISK:
        connection.answer_written(versions, id)
    elif not versions.last_seq:
        _answer_unwritten(connection, id, write, partition, written(versions, id))
    else:
        connection.answer_when(Level.QUORUM, ((partition, versions.last_seq),), written(versions, id), id)


def _answer_unwritten(connection: Connection, id: int, write: Write, partition: Partition, answer: bytes) -> None:
    """Answers a condition that does not hold: that tells of all that is there, and at level quorum of who leads.

    A leader that was deposed without knowing it may have all that it knows at quorum, and not know of what came after.
    """
    needs = ((partition, partition.high_seq),)
    if write.level == Level.QUORUM:
        connection.answer_confirmed(needs, answer, id)
    else:
        connection.answer_when(Level.DISK, needs, answer, id)


def _on_get(connection: Connection, frame: Frame) -> None:
    get = Get.decode(frame.body)
    node = connection.node
    node.require_state(get.state)
    if get.level == Level.QUORUM:
        node.require_set()
    feed = node.feeds.of_id(get.feed_id)
    lookup = Lookup(get.keys, [feed.partitions[number] for number in node.routes(get.keys, feed.info.partitions)])

    def answer() -> None:
        node.require_state(get.state)  # it may have changed while the index or the disk was waited for
        data = Got(lookup.items).encode(frame.id)
        needs = lookup.in_flight(get.level)
        if get.level == Level.QUORUM and node.role is Role.LEADER:
            connection.answer_confirmed(needs, data, frame.id)
        elif needs:
            connection.answer_when(get.level, needs, data, frame.id)
        else:
            connection.answer(data)

    _wait(connection, frame.id, lookup.step, answer)


def _wait(connection: Connection, id: int, step: _Step, then: Callable[[], None]) -> None:
    """Runs ``then`` at once where one ``step`` is enough; else steps in a task, with the loop free in between.

    Nothing happens between the last step and ``then``. What either of them would have to wait for the disk for is read
    in a thread, and both are tried again.
    """
    missing = None
    try:
        if step(_out_of_time(connection)):
            then()
            return
    except NotCached as error:
        missing = error
    if connection.waiting_requests >= connection.node.config.limits.waiting_requests_max:
        raise Overloaded(f"{connection.waiting_requests} requests of this connection are waiting; wait for answers")
    connection.waiting_requests += 1
    if missing is not None:
        _pin(connection.node, missing)
    connection.nursery.start_soon(_step_until, connection, id, step, then, missing)


def _out_of_time(connection: Connection) -> Callable[[], bool]:
    """True from about 2 ms on."""
    clock = connection.node.clock
    deadline = clock.monotonic() + STEP_SECONDS
    return lambda: clock.monotonic() >= deadline


async def _step_until(
    connection: Connection, id: int, step: _Step, then: Callable[[], None], missing: NotCached | None
) -> None:
    try:
        while True:
            if missing is None:
                await trio.lowlevel.checkpoint()
            else:
                await _load(connection.node, missing)
            await connection.wait_for_room()
            try:
                if step(_out_of_time(connection)):
                    then()
                    break
                missing = None
            except NotCached as error:
                missing = error
                _pin(connection.node, missing)
    except ProtocolError as error:
        connection.fail(error)
    except TailraceError as error:
        connection.answer_error(error, id)
    finally:
        connection.waiting_requests -= 1
    connection.node.turn_ended()


def _pin(node: Node, missing: NotCached) -> None:
    """A segment that leaves its chain now stays open until ``_load`` has read what is missing."""
    assert missing.segment is not None, "a segment says that it is its own"
    node.pins.pin(missing.segment)


async def _load(node: Node, missing: NotCached) -> None:
    """Reads what is missing, of a segment that is pinned, and unpins it. SegmentDamaged."""
    assert missing.segment is not None
    try:
        await node.host.workers.in_thread(missing.load)
    finally:
        node.pins.unpin(missing.segment)


def _on_accepted_seqs(connection: Connection, frame: Frame) -> None:
    """A follower asks how far this leader has come in these feeds, or in all: once a majority says that it leads."""
    node = connection.node
    node.require_leader()
    value = decode_json(frame.body, "ACCEPTED_SEQS")
    require_cluster(node.identity.cluster_id, value, "ACCEPTED_SEQS")
    asked = value.get("feed_ids")
    if not isinstance(asked, list):
        raise ProtocolError("ACCEPTED_SEQS: field 'feed_ids' is missing, or no list")
    wanted = set(map(str, asked))
    feeds = [f for f in (node.feeds.system, *node.feeds) if not wanted or f.info.feed_id.hex() in wanted]
    seqs = {feed.info.feed_id.hex(): [p.high_seq for p in feed.partitions] for feed in feeds}
    answer = encode_json(Opcode.RESULT, {"seqs": seqs}, frame.id)
    if value.get("joining") is True and node.member is not None and node.member.file.now.forced:
        # It may have no majority of voters until others have caught up with it: an operator has vouched for it.
        connection.answer(answer)
    else:
        connection.answer_when_confirmed(answer, frame.id)


HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.HELLO: _on_hello,
    Opcode.NOOP: _on_noop,
    Opcode.CREATE_FEED: _on_create_feed,
    Opcode.DROP_FEED: _on_drop_feed,
    Opcode.LIST_FEEDS: _on_list_feeds,
    Opcode.PARTITIONS: _on_partitions,
    Opcode.STATUS: _on_status,
    Opcode.EXPLAIN_RESUME: on_explain_resume,
    Opcode.WRITE: _on_write,
    Opcode.GET: _on_get,
    Opcode.STREAM_REQUEST: on_stream_request,
    Opcode.STREAM_CLOSE: on_stream_close,
    Opcode.CREDIT: on_credit,
    Opcode.BARRIER: on_barrier,
    **stage_requests.HANDLERS,
    Opcode.REPLICA_ACK: on_replica_ack,
    Opcode.LEADER_CONFIRM: on_leader_confirm,
    Opcode.ACCEPTED_SEQS: _on_accepted_seqs,
    **of_members.HANDLERS,
}
