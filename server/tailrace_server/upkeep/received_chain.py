"""Puts a chain of segments that another node has sent in the place of a partition's chain and blocks.

    here       (0, 80] (80, 120]   tree 121..170     journal 121..170
    received   (0, 400] (400, 520]                   files in the partition's directory, verified and durable
    after      (0, 400] (400, 520]   empty tree      the manifest ends at 520, so the journal's blocks count for nothing

The rows that are here have to be the beginning of the received ones: roll back first if they are not (rollback.py).
So nothing is lost, and nothing goes to lost/. No row is read, so the cost does not depend on the number of rows.

1. Journal: entries of the log that the sender does not have, and results of producers that are too early, are void.
2. All journaled records are durable; the feed has its FEED.
3. The manifest names the new chain, with log, purge seq, trim seq, producers and last batches. It is the only step that
   changes the partition: a crash before it leaves the old state, and the start removes the received files.
4. The partition of the running node has the new chain and an empty tree. Streams and checkpoints that read the old
   segments keep these files until they have ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from tailrace.errors import BadSegment, UnknownFeed
from tailrace.model.failover import FailoverLog
from tailrace.wire.segment_messages import PartitionCheckpoint
from tailrace_server.manifest import producers_from_json
from tailrace_server.manifest.invariants import problems
from tailrace_server.partition.chain import Chain, Pins
from tailrace_server.partition.replica_apply import entries_through, follow_log, settle_producers
from tailrace_server.segment import Segment
from tailrace_server.state import last_batches
from tailrace_server.state.expected import Expected
from tailrace_server.upkeep.installer import ReceivedEnd, manifest_of, with_received

if TYPE_CHECKING:
    from tailrace_server.partition.partition import Partition
    from tailrace_server.upkeep.storage import Storage


class ReceivedChain(NamedTuple):
    """A partition as of ``seq``, as its leader has it: a checkpoint without the sizes of its files.

    ``segments`` are ids (16 bytes), oldest first. Each is a link of the partition's chain, a former one that is pinned,
    or a received file with its final name. ``log`` may have newer entries than one at ``seq`` needs. ``producers`` is
    the result of `producers_to_json` as of ``seq``, ``sinks`` that of `last_batches.to_json`. ``files`` are the ids
    that are received files; None: all that are no links when the chain is installed. A segment that was compacted away
    meanwhile may still have a file, which is about to be removed, so a caller that counts on links names the others.
    ``again`` are the ids of links whose file was damaged: a received one is in its place.
    """

    seq: int
    segments: tuple[bytes, ...]
    log: FailoverLog
    purge_seq: int
    trim_seq: int
    producers: dict[str, Any]
    sinks: dict[str, Any]
    files: frozenset[bytes] | None = None
    again: frozenset[bytes] = frozenset()

    @classmethod
    def of(cls, told: PartitionCheckpoint) -> ReceivedChain:
        """Returns the chain of a checkpoint that was taken with its state. BadSegment if the state is missing."""
        if told.producers is None or told.sinks is None:
            raise BadSegment(f"the checkpoint of partition {told.partition} has no producers and sinks")
        ids = tuple(segment.id for segment in told.segments)
        return cls(told.seq, ids, told.log, told.purge_seq, told.trim_seq, told.producers, told.sinks)


async def prepare_to_receive(storage: Storage, partition: Partition) -> None:
    """Makes sure that a start knows the partition, before a received file has its final name in its directory.

    Otherwise the start finds segments without a manifest, which is damage. Raises NoSpace, NotDurable, OSError.
    """
    await storage.all_durable()
    await storage.flusher.write_feeds()
    if not partition.has_manifest:
        await storage.installer.write(partition)


async def install_received_chain(storage: Storage, partition: Partition, received: ReceivedChain) -> None:
    """Makes ``received`` the state of ``partition``, durably. A cancellation waits until it has ended.

    The caller is the only writer of the partition, and has called ``prepare_to_receive``. The received files are
    durable; their names are made durable here. Files that are not installed stay where they are: call this again with
    them, or ``installer.orphan``.

    Raises:
        OtherHistory: The rows that are here are not the beginning of the received ones.
        BadSegment: The received chain is shorter than what is here, or contradicts itself; or a former file of one of
            its segments is just being removed.
        SegmentDamaged: A received file cannot be opened.
        NoSpace, NotDurable, OSError: The disk refuses. The partition is as before.
        UnknownFeed: The feed was dropped.
    """
    with trio.CancelScope(shield=True):
        async with storage.flusher.holding(partition), storage.installer.holding(partition):
            _check_takes(partition, received)
            now = storage.host.clock.monotonic()
            if received.log:
                follow_log(partition, received.log, storage.journal, now)
            settle_producers(partition, storage.journal, now)
            await storage.all_durable()
            await storage.flusher.write_feeds()
            _check_takes(partition, received)
            with _pinned(storage.pins, partition) as found:
                known = {id: segment for id, segment in found.items() if id not in received.again}
                kept = known.keys() & set(received.segments)
                left = [s.path for s in partition.chain.segments if s.identity.segment_id not in kept]
                stood_at = partition.high_seq
                storage.begun_anew.left(partition, stood_at)
                await _open_and_install(storage, partition, received, known)
                if storage.forget_damage(left):
                    storage.begun_anew.copied(partition, stood_at)
    storage.flusher.on_flushed(partition)


@contextlib.contextmanager
def _pinned(pins: Pins, partition: Partition) -> Iterator[dict[bytes, Segment]]:
    """Pins the retired segments that are still being read, so that they stay. Returns these and the chain's, by id."""
    retired = pins.retired_of(partition.feed_id, partition.id)
    for segment in retired:
        pins.pin(segment)
    try:
        yield {segment.identity.segment_id: segment for segment in (*retired, *partition.chain.segments)}
    finally:
        for segment in retired:
            pins.unpin(segment)


async def _open_and_install(
    storage: Storage, partition: Partition, received: ReceivedChain, known: dict[bytes, Segment]
) -> None:
    """Installs the received chain, with the segments that are ``known`` and the files of the others."""
    for id in received.segments:
        if id not in known and storage.pins.is_leaving(id):
            raise BadSegment(f"the former file of segment {id.hex()} of partition {partition.id} is being removed")
    opened = await storage.host.workers.in_thread(lambda: _open_all(storage, partition, received, known))
    try:
        wrong = [line for id, segment in opened.items() if id not in known for line in _foreign(partition, segment)]
        await _install(storage, partition, received, Chain([*opened.values()]), wrong)
    except BaseException:
        for id, segment in opened.items():
            if id not in known:
                segment.close()
        partition.expect(Expected())
        raise
    storage.pins.reinstate(opened.values())


def _check_takes(partition: Partition, received: ReceivedChain) -> None:
    if partition.is_dropped:
        raise UnknownFeed(f"feed {partition.feed_id.hex()} was dropped")
    if received.seq < partition.high_seq:
        raise BadSegment(
            f"the received segments of partition {partition.id} end at seq {received.seq}, and it stands at "
            f"{partition.high_seq}"
        )


def _open_all(
    storage: Storage, partition: Partition, received: ReceivedChain, known: dict[bytes, Segment]
) -> dict[bytes, Segment]:
    """Returns the segments by id, oldest first; opens those that are not ``known``. Their names are durable then."""
    store, opened = storage.store, dict[bytes, Segment]()
    try:
        for id in received.segments:
            if received.files is not None and id not in known and id not in received.files:
                raise BadSegment(f"segment {id.hex()} of partition {partition.id} has left the chain meanwhile")
            path = store.segment_path(partition.feed_id, partition.id, id)
            opened[id] = known[id] if id in known else Segment.open(store.segment_files, path)
        if opened.keys() - known.keys():
            storage.host.disk.sync_directory(store.partition_directory(partition.feed_id, partition.id))
    except BaseException:
        for id in opened.keys() - known.keys():
            opened[id].close()
        raise
    return opened


def _foreign(partition: Partition, segment: Segment) -> Iterator[str]:
    """Yields a sentence if a received segment is not of this partition."""
    identity = segment.identity
    if (identity.feed_id, identity.partition) != (partition.feed_id, partition.id):
        yield f"{segment.path} is of partition {identity.partition} of feed {identity.feed_id.hex()}"
    elif identity.rows and not (
        partition.hash_first <= segment.least_hash and segment.greatest_hash <= partition.hash_last
    ):
        yield f"{segment.path} has keys of other partitions"


async def _install(
    storage: Storage, partition: Partition, received: ReceivedChain, chain: Chain, wrong: list[str]
) -> None:
    """Installs ``chain``. Raises BadSegment if anything is ``wrong``, here or with it."""
    seq, log = received.seq, received.log
    try:
        producers = producers_from_json(received.producers, partition.id, storage.host.clock.monotonic())
        sinks = last_batches.from_json(received.sinks)
    except ValueError as error:
        raise BadSegment(f"the received state of partition {partition.id}: {error}") from None
    end = ReceivedEnd(
        seq,
        entries_through(log, seq) if log else log,
        partition.rollbacks + 1,  # more than any journaled record has: all work begun with the old chain is void
        max(partition.purge_seq, received.purge_seq),
        max(partition.trim_seq, received.trim_seq),
    )
    partition.expect(Expected((seq, producers), (seq, sinks)))
    wrong = [*wrong, *problems(with_received(partition, manifest_of(partition, chain, bytes(16)), chain, end))]
    if wrong:
        raise BadSegment(f"the received segments of partition {partition.id}: {'; '.join(wrong[:5])}")
    await storage.installer.install_chain_held(partition, chain, end)
