"""WRITE: a block is checked, taken into its partition and journal, and answered at its level."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.block import FLAG_TTLS, Block
from tailrace.errors import ProtocolError, TailraceError, Unreachable
from tailrace.model import Level, Version, VersionRange
from tailrace.wire.frames import Frame
from tailrace.wire.messages import Trace, Write, WriteFlag, encode_error
from tailrace.wire.opcodes import Opcode
from tailrace_server.blocks import detached
from tailrace_server.partition.conditions import CONDITIONS
from tailrace_server.partition.partition import Partition
from tailrace_server.partition.writing import write_block
from tailrace_server.segment import Read, Reads, SegmentDamaged, SegmentFile
from tailrace_server.serving.connection import Connection
from tailrace_server.serving.time_slices import run_in_slices
from tailrace_server.serving.traces import begin_traced, keep_trace
from tailrace_server.stream.frames import written
from tailrace_server.upkeep.committer import INLINE_BYTES_MAX

# As globals: an attribute of an Enum is slow to read, and each write needs them.
_QUORUM, _MEMORY, _DISK = Level.QUORUM, Level.MEMORY, Level.DISK


def _on_write(connection: Connection, frame: Frame) -> None:
    node = connection.node
    write = Write.decode(frame.body)
    block = detached(Block.parse(write.block))
    trace = None if connection.traced is None else begin_traced(connection, frame.id, write, block)
    if connection.access.is_limited:
        connection.access.require_block(write.feed_id, block)
    leadership = node.leaderships.of(write.feed_id, block.header.partition)
    is_deposed = leadership.refuses_writes or node.turn.now >= leadership.sure_until
    if is_deposed or connection.changes[leadership.group.number] != leadership.changes:
        connection.require_writable(leadership)  # a node that refuses need not know of the feed
    partition = node.feeds.partition(write.feed_id, block.header.partition)
    level = write.level
    if level is None:
        level = node.feeds.of_id(write.feed_id).write_level(leadership.safest_level)
    elif level == _QUORUM:
        leadership.require_set()
        node.feeds.of_id(write.feed_id).require_quorum()
    if block.header.flags & FLAG_TTLS:
        leadership.replicas.require_ttls()
    if not write.flags & CONDITIONS:
        _take(connection, frame.id, write, level, partition, block, trace)
        return
    if block.header.rows != 1:
        raise ProtocolError("WRITE: a condition is for a block of one row")
    reads = Reads()
    run_in_slices(
        connection,
        frame.id,
        partition.index_keys,
        lambda: _take_now(connection, frame.id, write, level, partition, block, trace, reads.read),
        nbytes=len(frame.body),
    )


def _take_now(
    connection: Connection,
    id: int,
    write: Write,
    level: Level,
    partition: Partition,
    block: Block,
    trace: Trace | None,
    read: Read,
) -> None:
    """Does the work of ``_take`` after a wait: the node may have stopped leading, or the connection ended."""
    if connection.is_closing:  # its client may have written more on another one
        raise Unreachable("the connection has ended")
    connection.require_writable(connection.node.leaderships.of_partition(partition))
    _take(connection, id, write, level, partition, block, trace, read)


def _take(
    connection: Connection,
    id: int,
    write: Write,
    level: Level,
    partition: Partition,
    block: Block,
    trace: Trace | None,
    read: Read = SegmentFile.read,
) -> None:
    node, flags = connection.node, write.flags
    storage = node.storage
    if not connection.memory.writes:
        connection.memory.has_written()
    storage.require_writable()
    try:
        versions, fresh = write_block(
            partition,
            block,
            node.storage.journal,
            now_us=node.clock.wall_us(),
            now=node.turn.now,
            flags=flags,
            if_version=Version(partition.id, write.branch, write.seq) if flags & WriteFlag.IF_VERSION else None,
            read=read,
            begins_sync=level != _MEMORY
            and connection.is_level
            and block.nbytes <= INLINE_BYTES_MAX
            and storage.committer.is_alone(connection, node.turn.now),
        )
    except TailraceError as error:
        if not flags & CONDITIONS:
            raise
        if isinstance(error, SegmentDamaged):
            node.storage.found_damage(error)
        # A refusal tells of other writes, which must be durable before it is sent.
        _answer_unwritten(connection, id, level, partition, encode_error(error, id))
        return
    if fresh:
        if trace is not None:
            keep_trace(connection, partition, versions, trace)
        storage.wrote(partition)
        storage.written.wrote(block.header.rows, block.nbytes)
        if block.header.flags & FLAG_TTLS:
            node.expirer.note(partition)
    answer_written(connection, id, level, partition, versions)


def answer_written(
    connection: Connection,
    id: int,
    level: Level,
    partition: Partition,
    versions: VersionRange,
    *,
    is_alone: bool = False,
) -> None:
    """Answers a WRITE once its rows are at ``level``. ``is_alone``: it is all of a read."""
    if level == _DISK:
        connection.answers.add_written(versions, id, is_alone=is_alone)
    elif level == _MEMORY:
        node = connection.node
        connection.answers.add(written(versions, id))
        node.traffic.write_durations[_MEMORY].add(node.clock.monotonic() - node.turn.now)
    elif not versions.last_seq:
        _answer_unwritten(connection, id, level, partition, written(versions, id))
    else:
        connection.answers.add_written_at_quorum(partition, versions, id)


def _answer_unwritten(connection: Connection, id: int, level: Level, partition: Partition, answer: bytes) -> None:
    """Answers a condition that does not hold: that tells of all that is there, and at level quorum of who leads.

    A leader that was deposed without knowing it may have all that it knows at quorum, and not know of what came after.
    """
    needs = ((partition, partition.high_seq),)
    if level == _QUORUM:
        leadership = connection.node.leaderships.of_partition(partition)
        connection.answers.add_confirmed((leadership,), needs, answer, id)
    else:
        connection.answers.add_at(_DISK, needs, answer, id)


HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.WRITE: _on_write,
}
