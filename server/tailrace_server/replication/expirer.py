"""Deletes the keys whose ttl is over. Only the leader of a partition does, by its own clock.

    tick ── which partitions have rows that will expire? ──> _Expiring, with ranges of seqs (state/expiries.py)
    _run ── each second: the ranges that are due ── read in a thread, checked and deleted on the loop (expiring.py)

An expiry is a block of tombstones like any other: it is journaled, replicated and streamed in order. A leader that is
deposed with some of them loses them, and the next leader finds the same rows due. It begins with what it holds: the
segments tell their earliest expiry, and blocks that are not flushed are opened. Without ttls nothing runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import trio

from tailrace.errors import TailraceError
from tailrace_server.blocks.expiring import first_look_us, tombstones_of
from tailrace_server.partition.expiring import look, newest_of, scope_of
from tailrace_server.partition.ttls import PLAIN, VERSION_AT, first_with_ttls
from tailrace_server.partition.writing import append_block
from tailrace_server.replication.in_turns import LOOKS_AT_ONCE, InTurns
from tailrace_server.replication.role import Role
from tailrace_server.segment import SegmentDamaged
from tailrace_server.state.expiries import LATE_PARTS, LATE_US_MAX, NEVER_US, PendingExpiries
from tailrace_server.state.expiry_clock import ExpiryClock

if TYPE_CHECKING:
    from tailrace.block import Block
    from tailrace.block.arrays import ColumnArrays
    from tailrace_server.partition.chain import Chain
    from tailrace_server.partition.partition import Partition
    from tailrace_server.replication.leaderships import Leaderships
    from tailrace_server.upkeep.storage import Storage

log = logging.getLogger("tailrace.server")

# How often due ranges are looked for.
SWEEP_SECONDS = 1.0
# The partitions that one tick looks at after a change of leaders.
SURVEY_AT_ONCE = 512
# The time of one step on the loop, as for other long work.
SLICE_SECONDS = 0.002
# The pause after each look, as a multiple of its time: expiry takes a quarter of a processor at most.
PAUSE_PARTS = 3
# A range of a segment that cannot be read is looked at again after this time.
UNREAD_US = 60_000_000
# In a packed header: the timestamp.
_STAMP = slice(32, 40)


class _Expiring:
    """What a leader knows of a partition whose rows expire. It ends with the history or the term that it is of."""

    def __init__(self, partition: Partition, changes: int, default_us: int | None) -> None:
        self.pending = PendingExpiries()
        self.rollbacks, self.changes, self.default_us = partition.rollbacks, changes, default_us
        self.is_new = True  # nothing is covered yet
        self.covered_seq = 0
        self.stamp_us = 0  # no row above covered_seq has an earlier one

    def may_have_work(self, partition: Partition, now_us: int, default_us: int | None) -> bool:
        """Returns whether rows were written or rolled back since they were covered, or are due, or have another ttl.

        Also after the feed was dropped: the state, and with it the partition, is forgotten then. It is asked for each
        partition each second. ``default_us``: the ttl of the feed now.
        """
        if self.is_new or partition.is_dropped or self.pending.earliest_us <= now_us:
            return True
        if partition.rollbacks != self.rollbacks or default_us != self.default_us:
            return True
        return self.default_us is not None and partition.high_seq != self.covered_seq

    def cover_segments(self, chain: Chain) -> None:
        """Adds the rows of segments that are not covered yet, by what their identities tell."""
        for segment in chain.after(self.covered_seq):
            identity = segment.identity
            look_us = identity.earliest_expiry or NEVER_US
            if self.default_us is not None and identity.rows > identity.tombstones:
                look_us = min(look_us, identity.oldest_timestamp + self.default_us)
            self.pending.add(max(identity.after_seq, self.covered_seq) + 1, identity.last_seq, look_us)
            self.covered_seq, self.stamp_us = identity.last_seq, max(self.stamp_us, identity.newest_timestamp)

    def look_of(self, block: Block) -> int:
        """Returns a time at which no row of ``block``, the next one, is late. A block without ttls is not opened."""
        head = block.head
        look_us = NEVER_US
        if head[VERSION_AT] != PLAIN:
            look_us = first_look_us(block, self.default_us)
        elif self.default_us is not None:
            look_us = self.stamp_us + self.default_us + min(self.default_us // LATE_PARTS, LATE_US_MAX)
        self.stamp_us = int.from_bytes(head[_STAMP], "little")
        return look_us


class Expirer:
    """Deletes the due rows of the partitions that this node leads."""

    def __init__(self, storage: Storage, leaderships: Leaderships) -> None:
        self._storage = storage
        self._feeds = storage.feeds
        self._leaderships = leaderships
        self._monotonic = storage.host.clock.monotonic
        self._wall_us = storage.host.clock.wall_us
        self._clock = ExpiryClock(self._wall_us(), int(self._monotonic() * 1e6))
        self._expiring: dict[Partition, _Expiring] = {}
        self._noted: dict[Partition, None] = {}
        self._nursery: trio.Nursery | None = None
        self._is_running = False
        self._surveyed: tuple[dict[int, int], tuple[int, int]] | None = None
        self._survey: Iterator[Partition] = iter(())
        self._validated: dict[int, int] | None = None  # the changes of leaders that all states were compared with
        self.expired_rows = 0  # since the start

    def note(self, partition: Partition) -> None:
        """Notes that a block with ttls was written to ``partition``."""
        self._noted[partition] = None
        if not self._is_running:
            self._start()

    def tick(self) -> None:
        """Finds the partitions with rows that will expire, after a change of leaders or feeds; some at each call."""
        now = self._leaderships.changes(), self._feeds.version()
        if self._surveyed is None or now[0] != self._surveyed[0]:
            self._survey = self._feeds.partitions()
        if now != self._surveyed:
            self._surveyed = now
            for feed in self._feeds.feeds():
                if feed.info.ttl_s is not None:
                    self._noted.update(dict.fromkeys(feed.partitions))
        for _, partition in zip(range(SURVEY_AT_ONCE), self._survey, strict=False):
            if _has_ttls(partition):
                self._noted[partition] = None
        if self._noted and not self._is_running:
            self._start()

    def overdue_s(self) -> float:
        """Returns the seconds for which the rows have waited that are due longest; 0 if none is.

        A row counts from the look that deletes it, which may come a part of its ttl later (expiries.py).
        """
        earliest_us = min((state.pending.earliest_us for state in self._expiring.values()), default=NEVER_US)
        return max(self._now_us() - earliest_us, 0) / 1e6

    def begin(self, nursery: trio.Nursery) -> None:
        """Deletes due rows until ``nursery`` ends, in a task that runs while something will expire."""
        self._nursery = nursery
        self.tick()

    def _start(self) -> None:
        if self._nursery is not None:
            self._is_running = True
            self._nursery.start_soon(self._run)

    async def _run(self) -> None:
        while self._expiring or self._noted:
            await trio.sleep(SWEEP_SECONDS)
            await self._sweep()
        self._is_running = False

    async def _sweep(self) -> None:
        noted, self._noted = self._noted, {}
        turns = InTurns()
        for partition in noted:
            await turns.look()
            self._begin(partition)
        changes = self._leaderships.changes()
        if changes != self._validated:
            self._validated = changes
            for partition, state in list(self._expiring.items()):
                await turns.look()
                self._renew(partition, state)
        for partition, state in await self._to_tend(noted, turns):
            if state.is_new or state.default_us is not None or partition in noted:
                await self._cover(partition, state, turns)
            while self._is_valid(partition, state) and state.pending.earliest_us <= self._now_us():
                began_at = self._monotonic()
                if not await self._expire(partition, state):
                    break
                await trio.sleep((self._monotonic() - began_at) * PAUSE_PARTS)
            if state.default_us is None and not len(state.pending) and partition not in self._noted:
                self._expiring.pop(partition, None)  # the next block with a ttl begins anew

    async def _to_tend(self, noted: Mapping[Partition, None], turns: InTurns) -> list[tuple[Partition, _Expiring]]:
        """Returns the partitions with new rows, or with rows that are due. Of many partitions most have neither."""
        found, all_ = [], list(self._expiring.items())
        ttls: dict[bytes, int | None] = {}  # by feed id
        for first in range(0, len(all_), LOOKS_AT_ONCE):
            some = all_[first : first + LOOKS_AT_ONCE]
            await turns.look(len(some))  # a call for each would cost a fifth more
            now_us = self._now_us()
            for partition, state in some:
                feed_id = partition.feed_id
                if feed_id not in ttls:
                    ttls[feed_id] = self._default_us(partition) if feed_id in self._feeds else None
                if partition in noted or state.may_have_work(partition, now_us, ttls[feed_id]):
                    renewed = self._renew(partition, state)
                    if renewed is not None:
                        found.append((partition, renewed))
        return found

    def _renew(self, partition: Partition, state: _Expiring) -> _Expiring | None:
        """Begins anew after a change of the feed's ttl, or of this node's term. Returns the state; None without one."""
        if not self._is_valid(partition, state):
            self._expiring.pop(partition, None)
            self._begin(partition)
        return self._expiring.get(partition)

    def _now_us(self) -> int:
        return self._clock.now_us(self._wall_us(), int(self._monotonic() * 1e6))

    def _default_us(self, partition: Partition) -> int | None:
        """Returns the ttl that the feed gives to rows without one, in microseconds. Raises UnknownFeed."""
        ttl_s = self._feeds.retention_of(partition.feed_id).ttl_s
        return None if ttl_s is None else int(ttl_s * 1e6)

    def _begin(self, partition: Partition) -> None:
        """Begins with a partition that this node leads."""
        leadership = self._leaderships.of_partition(partition)
        if partition in self._expiring or partition.is_dropped or leadership.role is not Role.LEADER:
            return
        if partition.takes_writes and partition.damage is None and partition.feed_id in self._feeds:
            self._expiring[partition] = _Expiring(partition, leadership.changes, self._default_us(partition))

    def _is_valid(self, partition: Partition, state: _Expiring) -> bool:
        """Returns whether this node leads the partition as it did when ``state`` began, with the same ttl."""
        leadership = self._leaderships.of_partition(partition)
        if partition.is_dropped or partition.feed_id not in self._feeds or leadership.role is not Role.LEADER:
            return False
        known = state.changes, state.rollbacks, state.default_us
        return known == (leadership.changes, partition.rollbacks, self._default_us(partition))

    async def _cover(self, partition: Partition, state: _Expiring, turns: InTurns) -> None:
        """Adds the rows that were written since the last call."""
        state.is_new = False
        state.cover_segments(partition.chain)
        tree = partition.tree
        for block in tree.blocks_after(state.covered_seq):
            first, last = block.seqs
            look_us = state.look_of(block)
            state.pending.add(max(first, state.covered_seq + 1), last, look_us)
            state.covered_seq = last
            await turns.look(1 if look_us == NEVER_US else 4)

    async def _expire(self, partition: Partition, state: _Expiring) -> bool:
        """Looks at the next range that is due, and deletes its due keys. False if this cannot go on now."""
        now_us = self._now_us()
        due = state.pending.due(now_us)
        if due is None:
            return False
        scope, pins = scope_of(partition, due), self._storage.pins
        for segment in scope.chain.segments:
            pins.pin(segment)
        try:
            looked = await self._storage.host.workers.in_thread(lambda: look(scope, now_us, state.default_us))
        except TailraceError as error:  # of a segment that is damaged, or for which no descriptor is free
            if isinstance(error, SegmentDamaged):
                self._storage.found_damage(error)
            else:
                log.error("partition %s of feed %s: %s", partition.id, partition.feed_name, error)
            state.pending.replace(due, [due._replace(look_us=now_us + UNREAD_US)])
            return True
        finally:
            for segment in scope.chain.segments:
                pins.unpin(segment)
        place = 0
        while self._is_valid(partition, state):
            if partition.chain.flushed_seq != scope.chain.flushed_seq:
                return True  # rows have come into segments that were not asked: look again
            if place == looked.due.rows:
                state.pending.replace(due, looked.left)
                return True
            until = self._monotonic() + SLICE_SECONDS
            found = newest_of(partition, looked.due, place, lambda until=until: self._monotonic() >= until)  # type: ignore[misc]
            if found is not None:
                rows, place = found
                if rows.rows and not self._delete(partition, rows):
                    return False
            await trio.lowlevel.checkpoint()
        return False

    def _delete(self, partition: Partition, rows: ColumnArrays) -> bool:
        """Writes the tombstones of rows that are the newest of their keys. False if nothing can be written now."""
        leadership, storage = self._leaderships.of_partition(partition), self._storage
        try:
            leadership.require_writable()
            leadership.require_sure(self._monotonic())
            leadership.replicas.require_ttls()
            storage.require_writable()
            block = tombstones_of(rows, partition.id)
            append_block(partition, block, storage.journal, now_us=self._wall_us(), now=self._monotonic())
        except TailraceError as error:
            log.debug("keys of partition %s of feed %s stay for now: %s", partition.id, partition.feed_name, error)
            return False
        self.expired_rows += rows.rows
        storage.wrote(partition)
        storage.on_turn_ended()
        return True


def _has_ttls(partition: Partition) -> bool:
    """Returns whether a row of ``partition`` may have a ttl of its own."""
    if any(segment.identity.earliest_expiry for segment in partition.chain.segments):
        return True
    return bool(first_with_ttls(partition, partition.flushed_seq))
