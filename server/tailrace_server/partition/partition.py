"""A partition: one node's copy of a range of keys. Everything here is synchronous and runs on the node's loop.

A mutation's way: ``take`` (checks, seqs, journal, tree) -> ``durable_through`` (after the fsync) -> streams, and later
``install`` (when a segment has it) -> out of the tree. On a follower ``replica_apply.py`` is its beginning. What the
leader says by ``told`` and what is durable here decide what is shown.

    seqs   1 ............ flushed_seq ............ durable_seq ....... high_seq
           [ chain: segments        ] [ tree: the write queue                 ]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tailrace.block import Block
from tailrace.errors import Forbidden, UnknownFeed
from tailrace.model import Level, Version, VersionRange
from tailrace.model.failover import FailoverLog
from tailrace.model.hashing import key_hash
from tailrace.wire.messages import WriteFlag
from tailrace_server.blocks import Found
from tailrace_server.journal import Journal
from tailrace_server.partition.chain import Chain
from tailrace_server.partition.conditions import CONDITIONS, holds
from tailrace_server.partition.validation import check_at_door
from tailrace_server.segment import Read, SegmentDamaged, SegmentFile
from tailrace_server.state.journal_references import Homes
from tailrace_server.state.last_batches import LastBatch, LastBatches
from tailrace_server.state.memory import MemoryAccount
from tailrace_server.state.producers import ProducerTable, Verdict, result_of_resend
from tailrace_server.state.published_runs import Run, Runs
from tailrace_server.tree.key_index import KeyIndex, OpenBlocks
from tailrace_server.tree.tree import Tree

# To go through the enumeration itself takes longer than to make all else of a partition's watchers.
_LEVELS = tuple(Level)


class Taken(NamedTuple):
    """What became of a block: the versions that it has, and whether it was written just now."""

    versions: VersionRange
    fresh: bool


class Partition:
    """A contiguous range of a feed's key hashes, ``hash_first`` to ``hash_last``, both included."""

    def __init__(
        self, feed_id: bytes, id: int, hash_first: int, hash_last: int, account: MemoryAccount | None = None
    ) -> None:
        """``account`` is the node's, for what all write queues hold."""
        self.feed_id = feed_id
        self.id = id
        self.hash_first = hash_first
        self.hash_last = hash_last
        self.log = FailoverLog()
        self.account = MemoryAccount() if account is None else account
        self.chain = Chain()
        self.tree = Tree()
        self.homes = Homes()
        self.has_manifest = False
        self.is_dropped = False
        self.damage: SegmentDamaged | None = None  # of a segment that could not be opened: nothing more is taken
        self.newest_block: Block | None = None
        self.takes_writes = True  # by clients; those of ``_feeds`` are the node's
        self.listed_seq = 0  # of the row of ``_feeds`` that made the feed; 0 where none is known
        self.rollbacks = 0  # how often it was: what was begun before belongs to another history
        self.leader_log: FailoverLog | None = None  # on a follower, as it was told last
        self.state = "leader"  # or "follower": the node says so
        self.needs_quorum = False  # it belongs to a set: what a majority does not have yet should not be flushed
        self.high_seq = 0  # the last seq that was given, durable or not
        self.durable_seq = 0
        self.leader_durable_seq = 0  # on a follower: how far the leader has it on its disk
        self.was_told = False  # since the start, or since the last rollback
        self.quorum_seq = 0  # how far a majority has it on its disks
        self.on_durable: Callable[[], None] | None = None  # called when ``durable_seq`` has moved
        self.purge_seq = 0
        self.trim_seq = 0
        self.last_timestamp = 0
        self._producers = ProducerTable()
        self._producers.charge_to(self.account.producers)
        self.sinks = LastBatches()
        self.runs = Runs()  # of the tree: what was published in one step
        self.run_producers: tuple[int, ProducerTable] | None = None  # as of the end of a run that is coming
        self.run_sinks: tuple[int, dict[str, LastBatch]] | None = None
        self.keys = KeyIndex()
        self._watchers: dict[Level, dict[Callable[[], None], None]] = {level: {} for level in _LEVELS}
        self._readers: dict[Callable[[], None], None] = {}
        self.on_history_changed: Callable[[], None] | None = None  # called before anything of another history is taken

    @property
    def producers(self) -> ProducerTable:
        """What the partition remembers of its producers."""
        return self._producers

    @producers.setter
    def producers(self, table: ProducerTable) -> None:
        self._producers.charge_to(None)
        self._producers = table
        table.charge_to(self.account.producers)

    @property
    def flushed_seq(self) -> int:
        """Up to here segments have it all, but for what was trimmed."""
        return self.tree.base_seq

    def visible_seq(self, level: Level) -> int:
        """The last seq that a stream or a read of ``level`` shows, the end of a block or of a run.

        A follower shows at ``disk`` what both it and the leader have there. What it has flushed the leader had.
        """
        if level == Level.MEMORY:
            return self.high_seq
        if level == Level.DISK:
            if self.state == "leader":
                return self.durable_seq
            return max(self.flushed_seq, self._end_at(min(self.durable_seq, self.leader_durable_seq)))
        return self._end_at(min(self.durable_seq, self.quorum_seq))

    def _end_at(self, seq: int) -> int:
        """The last end of a block or of a run at or below ``seq``: nobody stands inside one."""
        if seq > self.flushed_seq:
            block = self.tree.find(seq)
            assert block is not None, "what is shown is in the tree or in segments"
            first_seq, last_seq = block.seqs
            seq = seq if last_seq == seq else first_seq - 1
            run = self.runs.around(seq)
            return seq if run is None else run.after_seq
        return self.chain.end_at(seq)

    @property
    def stable_seq(self) -> int:
        """Up to here no history that may still be lost: what is flushed, merged, and purged of tombstones."""
        return min(self.safe_seq, self.quorum_seq) if self.needs_quorum else self.safe_seq

    @property
    def safe_seq(self) -> int:
        """Up to here may be flushed where memory is tight: it is on the leader's disk, and on this one."""
        return self.durable_seq if self.state == "leader" else min(self.durable_seq, self.leader_durable_seq)

    def standing(self) -> tuple[int, int]:
        """What is compared at a promotion: the term of the newest entry that holds something here, and how far.

        Only what is durable counts: an entry from its base on. Term 0 where there is none.
        """
        term = next((entry.term for entry in self.log if entry.base <= self.durable_seq), 0)
        return term, self.durable_seq

    def told(self, durable_seq: int, quorum_seq: int) -> None:
        """The leader says how far it has the partition on its disk, and how far a majority has. Neither falls."""
        if durable_seq > self.leader_durable_seq or not self.was_told:
            self.was_told = True
            self.leader_durable_seq = max(durable_seq, self.leader_durable_seq)
            self._notify(Level.DISK)
        self.set_quorum_seq(quorum_seq)

    def set_quorum_seq(self, seq: int) -> None:
        """A majority has everything up to ``seq`` on its disks. It never falls, but by ``forget_above``."""
        if seq > self.quorum_seq:
            self.quorum_seq = seq
            self._notify(Level.QUORUM)

    def forget_above(self, seq: int) -> None:
        """What was said of seqs above ``seq`` is of a history that is none any more."""
        self.leader_durable_seq = min(self.leader_durable_seq, seq)
        self.quorum_seq = min(self.quorum_seq, seq)

    def _notify(self, level: Level) -> None:
        for notify in self._watchers[level]:
            notify()

    @property
    def is_watched(self) -> bool:
        """Somebody has called ``watch``, and still cares."""
        return any(self._watchers.values())

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
        read: Read = SegmentFile.read,
    ) -> Taken:
        """Checks a producer's block, gives it its seqs, journals it and hangs it into the tree; or recognises a resend.

        With a condition in ``flags`` the by-key index has to be level with the tree; check and append are one step.
        Raises BadBlock, OutOfOrder, OutcomeUnknown, VersionConflict, NoSpace or NotDurable, and NotCached where the
        condition needs what ``read`` would have to wait for; nothing is kept then.
        """
        if self.damage is not None:
            raise self.damage.with_traceback(None)
        if self.is_dropped:  # while a condition waited for the by-key index
            raise UnknownFeed(f"feed {self.feed_id.hex()} was dropped")
        if not self.takes_writes:
            raise Forbidden("_feeds lists the feeds: it is written by creating and dropping them")
        header = block.header
        decision = self._producers.decide(
            header.producer_id, header.producer_seq, resend=flags & WriteFlag.RESEND != 0, now=now
        )
        if decision.verdict is not Verdict.ACCEPT:
            return Taken(result_of_resend(decision, header, self.id), fresh=False)
        check_at_door(block, self.hash_first, self.hash_last)
        if flags & CONDITIONS and not self._condition_holds(block, flags, if_version, read):
            return Taken(VersionRange(self.id, self.log.branch, 0, 0), fresh=False)
        # NamedTuple's own constructor takes twice as long, here and below.
        return tuple.__new__(Taken, (self.append(block, journal, now_us=now_us, now=now), True))

    def _condition_holds(self, block: Block, flags: int, if_version: Version | None, read: Read) -> bool:
        key = block.open_columns().keys()[0]
        found = self.find(key, read=read)
        current = None if found is None or found.value is None else self.version_of(found.seq)
        return holds(key, current, self.log, flags, if_version)

    def append(self, block: Block, journal: Journal, *, now_us: int, now: float) -> VersionRange:
        """Gives a good block its seqs, journals it and hangs it into the tree. NoSpace, NotDurable: nothing is kept."""
        # A timestamp never goes back within a partition, whatever the wall clock does.
        timestamp = now_us if now_us > self.last_timestamp else self.last_timestamp
        stamped = block.stamped(self.high_seq + 1, timestamp)
        branch = self.log.branch
        place = journal.append_block(self.feed_id, self.id, branch, stamped)
        self.homes.block(journal.file_of(place), stamped.header.last_seq)
        return self.hang(stamped, branch, now)

    def change_log(self, log: FailoverLog) -> None:
        """``log`` is journaled; streams that were opened with another one end first."""
        if self.on_history_changed is not None:
            self.on_history_changed()
        self.log = log

    @property
    def held_timestamp(self) -> int:
        """The last stamp of what is held, in microseconds; ``last_timestamp`` may be that of rows that were lost."""
        return self.tree.last_timestamp or self.chain.newest_timestamp

    def hang(self, block: Block, branch: bytes, now: float) -> VersionRange:
        """Puts a block that is journaled into the tree."""
        header = block.header
        before = self.tree.memory_bytes
        self.tree = tree = self.tree.append(block)
        self.account.change(tree.memory_bytes - before)
        self.newest_block, self.high_seq = block, header.last_seq
        self.last_timestamp = header.timestamp
        versions = tuple.__new__(VersionRange, (self.id, branch, header.first_seq, header.last_seq))
        if header.producer_id:
            self._producers.record(header.producer_id, header.producer_seq, versions, now)
        for notify in self._watchers[Level.MEMORY]:
            notify()
        return versions

    def restore_blocks(self, blocks: Sequence[Block]) -> None:
        """Puts blocks that the journal held into the tree, at a start; their producers are told otherwise."""
        self.put_tree(self.tree.extended(blocks))
        last = blocks[-1].header
        self.newest_block, self.high_seq, self.last_timestamp = blocks[-1], last.last_seq, last.timestamp

    def hang_run(
        self, blocks: Sequence[Block], sinks: Mapping[str, LastBatch], branch: bytes, file: int
    ) -> VersionRange:
        """Puts a run that is journaled into the tree, all of it at once: nobody sees a part."""
        after_seq, last = self.high_seq, blocks[-1].header
        before, tree = self.tree.memory_bytes, self.tree
        for block in blocks:
            tree = tree.append(block)
        self.tree = tree
        self.account.change(tree.memory_bytes - before)
        self.newest_block, self.high_seq = blocks[-1], last.last_seq
        self.last_timestamp = last.timestamp
        self.runs.add(Run(after_seq, last.last_seq, len(blocks)))
        self.homes.block(file, last.last_seq)
        self.sinks.tell(sinks)
        self._notify(Level.MEMORY)
        return VersionRange(self.id, branch, after_seq + 1, last.last_seq)

    @property
    def merge_cuts(self) -> list[int]:
        """The borders that no merged block may cross: where branches begin, and the ends of runs of several blocks."""
        cuts = [entry.base for entry in self.log]
        return cuts + self.runs.cuts(self.tree.find) if self.runs else cuts

    def version_of(self, seq: int) -> Version:
        """The version that ``seq`` is."""
        return Version(self.id, self.log.branch_at(seq), seq)

    def find(self, key: bytes, opened: OpenBlocks | None = None, read: Read = SegmentFile.read) -> Found | None:
        """The newest row of ``key``, at any level; the by-key index has to be level with the tree.

        Raises SegmentDamaged where a segment that would have to be looked at cannot be, and NotCached where ``read``
        would have to wait for it.
        """
        if self.is_dropped:  # while a look-up of many keys was under way
            raise UnknownFeed(f"feed {self.feed_id.hex()} was dropped")
        found = self.keys.find(self.tree, key, opened)
        if found is not None or not self.chain.segments:
            return found
        return self.chain.find(key, key_hash(key), read)

    def durable_through(self, seq: int) -> None:
        """The journal holds everything up to ``seq``, fsynced."""
        assert self.durable_seq <= seq <= self.high_seq
        self.durable_seq = seq
        for notify in self._watchers[Level.DISK]:
            notify()
        if self.quorum_seq:  # told before it was durable here
            self._notify(Level.QUORUM)
        if self.on_durable is not None:
            self.on_durable()

    # Storage

    def restore(
        self, flushed_seq: int, chain: Chain, log: FailoverLog, producers: ProducerTable, timestamp: int
    ) -> None:
        """Takes over what a manifest said, before anything else is done with the partition."""
        self.chain, self.log, self.producers, self.last_timestamp = chain, log, producers, timestamp
        self.tree = Tree(flushed_seq)
        self.keys.drop_through(flushed_seq)
        self.high_seq = self.durable_seq = flushed_seq
        self.has_manifest = True

    def keep_record(self, file: int, seq: int) -> None:
        """Keeps the journal's ``file``, which tells of rows up to ``seq``, until a manifest that covers them does.

        If all of them are flushed, the next manifest says it. So the journal of an idle partition can be trimmed.
        """
        if seq > self.flushed_seq:
            self.homes.block(file, seq)
        self.homes.control(file)

    def install(self, chain: Chain, controls: int) -> None:
        """Notes that the manifest durably names ``chain``, and says what the first ``controls`` control records do."""
        self.chain, self.has_manifest = chain, True
        flushed_seq = max(chain.flushed_seq, self.flushed_seq)
        self.homes.manifest_written(controls, flushed_seq)
        if flushed_seq > self.flushed_seq:
            self.put_tree(self.tree.drop_through(flushed_seq))
            self.keys.drop_through(flushed_seq)
            self.runs.drop_through(flushed_seq)
            self.sinks.flushed(flushed_seq)
            if self.newest_block is not None and self.newest_block.header.last_seq <= flushed_seq:
                self.newest_block = None
            for moved in list(self._readers):
                moved()

    def install_run(self, chain: Chain, controls: int, log: FailoverLog) -> None:
        """``chain``, which ends with a run that was never in the tree, is what the manifest names now, durably.

        The tree is empty. ``purge_seq`` and ``trim_seq`` are set already.
        """
        assert not self.tree.block_count, "a run begins where the segments end"
        if log.branch != self.log.branch:
            self.change_log(log)
        if self.run_producers is not None and self.run_producers[0] == chain.flushed_seq:
            self.producers = self.run_producers[1]
        if self.run_sinks is not None and self.run_sinks[0] == chain.flushed_seq:
            self.sinks.tell(self.run_sinks[1])
        self.run_producers = self.run_sinks = None
        self.high_seq = self.durable_seq = chain.flushed_seq
        self.last_timestamp = max(self.last_timestamp, chain.newest_timestamp)
        self.tree = Tree(chain.flushed_seq)
        self.newest_block = None
        self.keys.drop_through(chain.flushed_seq)
        self.install(chain, controls)
        for level in Level:
            self._notify(level)
        for moved in list(self._readers):
            moved()
        if self.on_durable is not None:
            self.on_durable()

    def stand_at(self, seq: int, chain: Chain, log: FailoverLog, rollbacks: int) -> None:
        """The partition is rolled back: blocks above ``seq`` go, ``chain`` are the segments that stay.

        ``seq`` is the end of a block, or of ``chain``. The journal says so, or a manifest.
        """
        tree = self.tree.cut_above(seq) if seq > chain.flushed_seq else Tree(seq)
        self.put_tree(tree)
        self.keys = KeyIndex()
        self.keys.drop_through(tree.base_seq)
        self.chain, self.log, self.rollbacks = chain, log, rollbacks
        self.newest_block = None
        self.high_seq, self.durable_seq = seq, min(self.durable_seq, seq)
        self.purge_seq, self.trim_seq = min(self.purge_seq, seq), min(self.trim_seq, seq)
        self.last_timestamp = self.held_timestamp
        self.leader_log = self.run_producers = self.run_sinks = None
        self.runs.drop_above(seq)
        self.runs.drop_through(tree.base_seq)
        self.sinks.forget_above(seq)
        self.was_told = False
        self.producers.drop_above(seq)
        self.homes.cut(seq, tree.base_seq)
        self.forget_above(seq)

    def put_tree(self, tree: Tree) -> None:
        """Puts a tree in place of the present one that says the same, or the same but for what was flushed."""
        self.account.change(tree.memory_bytes - self.tree.memory_bytes)
        self.tree = tree

    def on_flush(self, moved: Callable[[], None]) -> None:
        """Calls ``moved`` each time that something has gone from the tree to a segment, until ``off_flush``."""
        self._readers[moved] = None

    def off_flush(self, moved: Callable[[], None]) -> None:
        """Ends ``on_flush``."""
        self._readers.pop(moved, None)

    def drop(self) -> None:
        """The feed is no more: nothing of the partition is to be kept."""
        self.is_dropped = True
        self.account.change(-self.tree.memory_bytes)
        self.tree = Tree(self.high_seq)
        self.runs = Runs()
        self.producers = ProducerTable()

    def check(self) -> None:
        """Walks every invariant; AssertionError names the one that does not hold."""
        self.tree.check()
        self.chain.check()
        assert not self.chain.segments or self.chain.flushed_seq == self.flushed_seq, "the tree begins elsewhere"
        assert self.high_seq == self.tree.last_seq, "the tree does not end where the partition does"
        assert self.durable_seq <= self.high_seq, "more is durable than was given"
        assert len(self.log) <= 1 or self.log[0].base <= self.high_seq, "the newest branch begins above the last seq"
        assert self.keys.indexed_seq <= self.high_seq, "the by-key index is ahead of the tree"
        self.runs.check(self.flushed_seq, self.high_seq, self.tree.find)
