"""Streams a partition from the end of a checkpoint while its segments are still being copied, into the file AHEAD.

    segments    (0 ........... C]                    copied by catching_up.py
    this stream                 (C .... X]           whole snapshots, durable, unseen: upkeep/ahead_file.py
    then                        (C .... X] applied   and the pull's own stream goes on from X

It has a connection of its own, so it never holds up the other partitions. It acknowledges nothing: only rows of the
prefix count. If it ends, for any reason, the rows behind it come by the pull's own stream.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import trio

from tailrace.consuming.events import (
    Agreed,
    Event,
    Mutations,
    ReplicaEvent,
    Rollback,
    SnapshotEnd,
    SnapshotStart,
    StreamFailed,
)
from tailrace.errors import Forbidden, NoSpace, NotDurable, NotLeader, TailraceError
from tailrace.link.address import Address
from tailrace.model.failover import SEQ_MAX, FailoverLog, common_seq
from tailrace.model.position import Position, Positions
from tailrace.trio.replica import CopyOptions, ReplicaStream
from tailrace.trio.replica_link import replica_link
from tailrace.wire.replica_messages import LeaderSeqs, Producers, Replica
from tailrace.wire.stage_messages import SinksTold
from tailrace_server.blocks import cut_above
from tailrace_server.partition.replica_apply import entries_through
from tailrace_server.replication.eligibility import why_other_cluster
from tailrace_server.replication.in_turns import InTurns
from tailrace_server.replication.peers import host_of
from tailrace_server.upkeep.ahead_file import AheadFile, nbytes_of

if TYPE_CHECKING:
    from tailrace.wire.messages import HelloOk
    from tailrace_server.feeds.feed import Feed
    from tailrace_server.partition.partition import Partition
    from tailrace_server.replication.local_node import LocalNode

logger = logging.getLogger("tailrace.server")

# The bytes of rows that are kept ahead of a partition's segments; the rest comes by the pull's own stream. Four
# partitions are copied at a time.
AHEAD_BYTES_MAX = 256 * 1024 * 1024
# The bytes that are gathered before they are written, if the stream does not pause.
GATHERED_BYTES_MAX = 4 * 1024 * 1024
WINDOW_BYTES = 8 * 1024 * 1024


class AheadStream:
    """The stream of one partition to its file AHEAD."""

    def __init__(
        self,
        node: LocalNode,
        feed: Feed,
        partition: Partition,
        address: Address,
        role: str,
        term: int,
        replica: Replica,
        is_stopped: Callable[[], bool],
    ) -> None:
        """The node at ``address`` has to be in ``role`` and ``term``. After ``is_stopped()`` nothing is written."""
        self._node = node
        self._feed = feed
        self._partition = partition
        self._address = address
        self._role = role
        self._term = term
        self._replica = replica
        self._is_stopped = is_stopped
        self._gathered: list[Event | ReplicaEvent] = []
        self._gathered_bytes = 0
        self.leader_seqs: LeaderSeqs | None = None  # the last ones that the node has told

    async def run_beside(self, seq: int, log: FailoverLog, receive: Callable[[], Awaitable[None]]) -> None:
        """Runs ``receive``, and streams rows behind ``seq`` of the history ``log`` until that has ended.

        Raises the errors of ``receive``. If the stream ends before that, the log says why.
        """
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run, seq, log)
            try:
                await receive()
            except Exception as error:  # raised below, outside of the nursery, which would wrap it in a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _run(self, seq: int, log: FailoverLog) -> None:
        try:
            await self._stream_to(await self._node.storage.ahead.begin(self._partition, seq, log))
        except (TailraceError, OSError) as error:
            logger.info(
                "partition %s of feed %s is not streamed ahead of its segments any more: %s",
                *(self._partition.id, self._feed.info.name, error),
            )

    async def _stream_to(self, file: AheadFile) -> None:
        node, id = self._node, self._partition.id
        file.forget_half()
        self._gathered, self._gathered_bytes = [], 0
        at = Position.at(entries_through(file.log, file.last_seq), file.last_seq)
        positions = Positions(node.identity.cluster_id, self._feed.info.feed_id, {id: at})
        connection = replica_link(
            self._address,
            self._replica,
            host=host_of(node),
            state=self._role,
            window_bytes=WINDOW_BYTES,
            timeout_s=node.config.replication.step_timeout_s,
            token=node.config.peer_token,
        )
        async with connection as link:
            self._check_peer(link.peer)
            stream = link.copy(self._feed.info.name, positions, CopyOptions(frozenset(positions)))
            async for event in stream:
                if self._is_stopped() or not await self._take(stream, file, event):
                    return
                if self._gathered and (not stream.has_event() or self._gathered_bytes >= GATHERED_BYTES_MAX):
                    await self._write(file)
                    if file.nbytes >= AHEAD_BYTES_MAX:
                        return

    def _check_peer(self, peer: HelloOk) -> None:
        why = why_other_cluster(self._node.identity.cluster_id, str(self._address), bytes.fromhex(peer.cluster_id))
        if why:
            raise Forbidden(f"{why}: nothing is taken")
        if (peer.role, peer.term) != (self._role, self._term):
            raise NotLeader(f"{self._address} is {peer.role} in term {peer.term} now, not {self._role}")

    async def _take(self, stream: ReplicaStream, file: AheadFile, event: Event | ReplicaEvent) -> bool:
        """Gathers an event of the partition. Returns whether the stream goes on."""
        match event:
            case Mutations():
                if event.block.header.first_seq < event.first_seq:
                    event = Mutations(cut_above(event.block, event.first_seq - 1))
                self._gather(event)
            case SnapshotStart() | SnapshotEnd() | Producers() | SinksTold():
                self._gather(event)
            case Agreed():
                if event.log != file.log:
                    self._gather(event)
            case Rollback():
                self._gathered, self._gathered_bytes = [], 0
                await self._node.storage.ahead.keep_through(self._partition, file, event.seq)
                if self._node.storage.ahead.find(self._partition) is not file:
                    return False
                stream.settle(event, file.last_seq)
            case LeaderSeqs():
                self.leader_seqs = event
            case StreamFailed():
                return False
        return True

    def _gather(self, event: Event | ReplicaEvent) -> None:
        self._gathered.append(event)
        self._gathered_bytes += nbytes_of(event)

    async def _write(self, file: AheadFile) -> None:
        events, nbytes = self._gathered, self._gathered_bytes
        self._gathered, self._gathered_bytes = [], 0
        storage = self._node.storage
        if storage.space.low:
            raise NoSpace(storage.space.low)
        await storage.space.check_room(nbytes, "rows that come ahead of their segments")
        await storage.host.workers.in_thread(lambda: file.append(events))


async def apply_ahead(
    node: LocalNode,
    partition: Partition,
    leader_log: FailoverLog,
    leader_seqs: LeaderSeqs | None,
    apply: Callable[[Event | ReplicaEvent], Awaitable[None]],
    is_stopped: Callable[[], bool],
) -> None:
    """Applies the rows of the partition's file AHEAD, in their order, and removes the file once they are durable.

    If the prefix does not reach the rows, or either is of another history than ``leader_log``, the file is removed
    without that. ``leader_seqs`` are the last ones that the leader has told, without which a full memory cannot be
    flushed. ``apply`` applies an event as if it came by the stream.

    Raises NoSpace, NotDurable, OSError: the file stays.
    """
    storage = node.storage
    file = storage.ahead.find(partition)
    if file is None:
        return
    log = leader_log if leader_log.term >= file.log.term else file.log
    why = _why_not(partition, file, log)
    if why or file.last_seq <= partition.high_seq:
        await storage.ahead.discard(partition, why)
        return
    before = partition.high_seq
    if leader_seqs is not None:
        partition.set_leader_seqs(leader_seqs.durable_seq, leader_seqs.quorum_seq)
    try:
        await apply(Agreed(partition.id, log, -1))
        with contextlib.closing(file.events(before)) as events:
            while some := await storage.host.workers.in_thread(lambda: _some(events)):
                for event in some:
                    if is_stopped():
                        return
                    await apply(event)
        await storage.all_durable()
    except (NoSpace, NotDurable):
        raise
    except TailraceError as error:
        await storage.ahead.discard(partition, f"they do not fit: {error}")
        return
    if not is_stopped():
        logger.info(
            "partition %s of feed %s has seqs %s to %s, which came ahead of their segments",
            *(partition.id, partition.feed_name, before + 1, partition.high_seq),
        )
        await storage.ahead.discard(partition, "")


async def drop_ahead(node: LocalNode, partitions: Iterable[Partition]) -> list[str]:
    """Drops all rows beyond the prefixes, for a node that is about to lead. Returns a sentence for each partition.

    A node leads by its prefixes alone, as its own standing and the fetches of its promotion have brought them: no
    other node counts on the rows beyond. OSError.
    """
    storage, told = node.storage, []
    turns = InTurns()
    for partition in list(partitions):
        await turns.look()
        held = storage.ahead.ranges(partition)
        await storage.ahead.discard(partition, "this node leads without them")
        await storage.received.discard(partition)
        storage.incoming.forget(partition)  # no leader pushes the rest of a half file
        if held.ranges:
            name, seqs = node.feeds.of_id(partition.feed_id).info.name, ", ".join(map(str, held.ranges))
            holes = ", ".join(map(str, held.holes()))
            why = f"seqs {holes} are missing before them" if holes else "they were not applied yet"
            told.append(f"drops seqs {seqs} of partition {partition.id} of feed {name}: {why}")
    return told


def _why_not(partition: Partition, file: AheadFile, log: FailoverLog) -> str:
    """Returns why the rows of ``file``, of the history ``log``, do not follow those of ``partition``; "" if they do."""
    if partition.high_seq < file.after_seq:
        return f"seqs {partition.high_seq + 1} to {file.after_seq} are missing before them"
    if common_seq(entries_through(file.log, file.last_seq), file.last_seq, log, SEQ_MAX) != file.last_seq:
        return "they are not of the leader's history"  # the file could not be cut
    common = common_seq(partition.log, partition.high_seq, log, SEQ_MAX)
    # A newer branch may have begun here at the prefix, without a row yet.
    if common != partition.high_seq or all(entry.branch != partition.log.branch for entry in log):
        return f"they are of another history than seq {partition.high_seq}"
    return ""


def _some(events: Iterable[Event | ReplicaEvent]) -> list[Event | ReplicaEvent]:
    """Returns the next events, of about GATHERED_BYTES_MAX; none at the end."""
    found: list[Event | ReplicaEvent] = []
    nbytes = 0
    for event in events:
        found.append(event)
        nbytes += nbytes_of(event)
        if nbytes >= GATHERED_BYTES_MAX:
            break
    return found
