"""A partition: one leader's view of a range of keys. Everything here is synchronous and runs on the node's loop.

A mutation's way: ``take`` (checks, seqs, journal, tree) -> ``durable_through`` (after the fsync) -> streams.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tailrace.block import Block
from tailrace.errors import OutcomeUnknown, VersionConflict, VersionLost
from tailrace.failover import FailoverEntry, FailoverLog
from tailrace.model import Level, Version, VersionRange
from tailrace.wire.failures import OutOfOrder
from tailrace.wire.messages import WriteFlag
from tailrace_server.intake.door import check_at_door
from tailrace_server.intake.producers import ProducerTable, Verdict
from tailrace_server.journal import Journal
from tailrace_server.tree.key_index import Found, KeyIndex, OpenBlocks
from tailrace_server.tree.tree import Tree

CONDITIONS = WriteFlag.IF_ABSENT | WriteFlag.IF_VERSION | WriteFlag.IF_PRESENT


class Taken(NamedTuple):
    """What became of a block: the versions that it has, and whether it was written just now."""

    versions: VersionRange
    fresh: bool


class Partition:
    """A contiguous range of a feed's key hashes, ``hash_first`` to ``hash_last``, both included."""

    def __init__(self, feed_id: bytes, id: int, hash_first: int, hash_last: int) -> None:
        self.feed_id = feed_id
        self.id = id
        self.hash_first = hash_first
        self.hash_last = hash_last
        self.log = FailoverLog()
        self.tree = Tree()
        self.durable_seq = 0
        self.purge_seq = 0
        self.last_timestamp = 0
        self.producers = ProducerTable()
        self.keys = KeyIndex()
        self._watchers: dict[Level, dict[Callable[[], None], None]] = {Level.MEMORY: {}, Level.DISK: {}}

    @property
    def high_seq(self) -> int:
        """The last seq that was given, durable or not."""
        return self.tree.last_seq

    def visible_seq(self, level: Level) -> int:
        """The last seq that a stream or a read of ``level`` shows."""
        return self.tree.last_seq if level == Level.MEMORY else self.durable_seq

    def watch(self, level: Level, notify: Callable[[], None]) -> None:
        """Calls ``notify`` each time that more becomes visible at ``level``, until ``unwatch``."""
        self._watchers[level][notify] = None

    def unwatch(self, level: Level, notify: Callable[[], None]) -> None:
        """Ends ``watch``."""
        self._watchers[level].pop(notify, None)

    def take(
        self,
        block: Block,
        journal: Journal,
        *,
        now_us: int,
        now: float,
        flags: int = 0,
        if_version: Version | None = None,
    ) -> Taken:
        """Checks a producer's block, gives it its seqs, journals it and hangs it into the tree; or recognises a resend.

        With a condition in ``flags`` the by-key index has to be level with the tree; check and append are one step.
        Raises BadBlock, OutOfOrder, OutcomeUnknown, VersionConflict, NoSpace or NotDurable; nothing is kept then.
        """
        header = block.header
        decision = self.producers.decide(
            header.producer_id, header.producer_seq, resend=bool(flags & WriteFlag.RESEND), now=now
        )
        match decision.verdict:
            case Verdict.DUPLICATE:
                assert decision.result is not None
                return Taken(decision.result, fresh=False)
            case Verdict.OUT_OF_ORDER:
                raise OutOfOrder(
                    f"partition {self.id}: block {header.producer_seq} of producer {header.producer_id:016x} is out of "
                    f"order, {decision.expected} comes next",
                    expected=decision.expected,
                )
            case Verdict.UNKNOWN:
                raise OutcomeUnknown(
                    f"partition {self.id} had to forget producers within the last hour: whether block "
                    f"{header.producer_seq} of producer {header.producer_id:016x} was written cannot be told"
                )
        check_at_door(block, self.hash_first, self.hash_last)
        if flags & CONDITIONS and not self._holds(block, flags, if_version):
            return Taken(VersionRange(self.id, self.log.branch, 0, 0), fresh=False)
        return Taken(self._append(block, journal, now_us, now), fresh=True)

    def _append(self, block: Block, journal: Journal, now_us: int, now: float) -> VersionRange:
        # A timestamp never goes back within a partition, whatever the wall clock does.
        timestamp = max(now_us, self.last_timestamp)
        stamped = block.stamped(self.tree.last_seq + 1, timestamp)
        journal.append_block(self.feed_id, self.id, self.log.branch, stamped)
        return self._hang(stamped, now)

    def _hang(self, block: Block, now: float) -> VersionRange:
        header = block.header
        self.tree = self.tree.append(block)
        self.last_timestamp = header.timestamp
        versions = VersionRange(self.id, self.log.branch, header.first_seq, header.last_seq)
        if header.producer_id:
            self.producers.record(header.producer_id, header.producer_seq, versions, now)
        for notify in self._watchers[Level.MEMORY]:
            notify()
        return versions

    def _holds(self, block: Block, flags: int, if_version: Version | None) -> bool:
        """Whether a condition holds; False only for "delete if present" of what is not there."""
        key = block.columns().keys()[0]
        found = self.keys.find(self.tree, key)
        present = found is not None and found.value is not None
        if flags & WriteFlag.IF_PRESENT:
            return present
        if if_version is not None and self.log.has_ended_below(if_version.branch, if_version.seq):
            raise VersionLost(f"{if_version} is of a branch that has ended below it: read the key again")
        current = self.version_of(found.seq) if found is not None and present else None
        if flags & WriteFlag.IF_ABSENT and present:
            raise VersionConflict(f"key {key!r} is there already, as {current}", current=current)
        if flags & WriteFlag.IF_VERSION and current != if_version:
            raise VersionConflict(f"key {key!r} is not at {if_version} but at {current}", current=current)
        return True

    def version_of(self, seq: int) -> Version:
        """The version that ``seq`` is."""
        return Version(self.id, self.log.branch_at(seq), seq)

    def find(self, key: bytes, opened: OpenBlocks | None = None) -> Found | None:
        """The newest row of ``key``, at any level; the by-key index has to be level with the tree."""
        return self.keys.find(self.tree, key, opened)

    def durable_through(self, seq: int) -> None:
        """The journal holds everything up to ``seq``, fsynced."""
        assert self.durable_seq <= seq <= self.high_seq
        self.durable_seq = seq
        for notify in self._watchers[Level.DISK]:
            notify()

    def recover_block(self, block: Block, now: float) -> None:
        """Hangs a block that the journal held."""
        self._hang(block, now)

    def new_branch(self, branch: bytes) -> FailoverLog:
        """The failover log as it will be when a branch begins here; ``log`` is set once it is durable."""
        term = self.log.term + 1 if self.log else 1
        return self.log.with_entry(FailoverEntry(branch, term, self.high_seq))

    def check(self) -> None:
        """Walks every invariant; AssertionError names the one that does not hold."""
        self.tree.check()
        assert self.durable_seq <= self.high_seq, "more is durable than was given"
        assert not self.log or self.log[0].base <= self.high_seq, "the newest branch begins above the last seq"
        assert self.keys.indexed_seq <= self.high_seq, "the by-key index is ahead of the tree"
