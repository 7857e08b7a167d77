"""A partition: one node's copy of a range of keys. All of its methods are synchronous and run on the node's loop.

``Partition`` alone changes its state: other files call its methods and read its fields (tests/test_owners.py).

    append ──> journal, tree ── durable_through (after the fsync) ──> streams ── install (a segment has it) ──> chain

Journaled first, a producer's blocks come by writing.py, the leader's by replica_apply.py, a publish's by published.py.
newest_row.py looks keys up.

    seqs   1 ............ flushed_seq ............ durable_seq ....... high_seq
           [ chain: segments        ] [ tree: the write queue                 ]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tailrace.block import Block
from tailrace.model import Level, Version, VersionRange
from tailrace.model.failover import FailoverLog
from tailrace_server.manifest import Manifest
from tailrace_server.partition.chain import Chain, LostSegment
from tailrace_server.partition.pushes import PushState
from tailrace_server.partition.visibility import end_at
from tailrace_server.partition.watchers import Watchers
from tailrace_server.segment import SegmentDamaged
from tailrace_server.state.expected import Expected
from tailrace_server.state.journal_references import JournalReferences
from tailrace_server.state.last_batches import LastBatch, LastBatches
from tailrace_server.state.memory import MemoryAccount
from tailrace_server.state.producer_columns import ProducerResults
from tailrace_server.state.producers import ProducerTable
from tailrace_server.state.published_batches import PublishedBatch, PublishedBatches
from tailrace_server.tree.key_index import KeyIndex
from tailrace_server.tree.tree import Tree

# As globals: an attribute of an Enum is slow to read, and each write needs them.
_MEMORY, _DISK, _QUORUM = Level.MEMORY, Level.DISK, Level.QUORUM


class Partition:
    """A contiguous range of a feed's key hashes, ``hash_first`` to ``hash_last``, both included."""

    def __init__(
        self,
        feed_id: bytes,
        id: int,
        hash_first: int,
        hash_last: int,
        account: MemoryAccount | None = None,
        *,
        log: FailoverLog | None = None,
        takes_writes: bool = True,
        feed_name: str = "",
    ) -> None:
        """Makes an empty partition; ``account`` is the node's, for the memory of all write queues."""
        # Identity. Invariant: 0 <= hash_first <= hash_last. None of these fields changes.
        self.feed_id = feed_id
        self.feed_name = feed_name or feed_id.hex()  # for people
        self.id = id
        self.hash_first = hash_first
        self.hash_last = hash_last
        self.takes_writes = takes_writes  # from clients; False for ``_feeds``, which only the node writes
        self.account = MemoryAccount() if account is None else account

        # History. Invariant: the newest branch of ``log`` begins at or below high_seq.
        self.log = FailoverLog() if log is None else log
        self.rollbacks = 0  # how often the partition was rolled back: work begun before a rollback is void
        self.listed_seq = 0  # the seq of the row of ``_feeds`` that lists the feed; 0 if it is not known

        # Seqs. Invariant: 0 <= flushed_seq <= durable_seq <= high_seq, until the partition is dropped.
        self.high_seq = 0  # the last seq that was assigned, durable or not
        self.durable_seq = 0  # the last seq that the journal holds, fsynced
        self.purge_seq = 0  # at or below it a key may be gone without a tombstone
        self.trim_seq = 0  # rows at or below it were dropped by age
        self.last_timestamp = 0  # microseconds since 1970; it never falls, except in a rollback

        # Rows. Invariant: the chain covers (0, tree.base_seq], the tree covers (tree.base_seq, high_seq].
        self.chain = Chain()
        self.tree = Tree()
        self.divisions: list[int] = []  # the seqs at which flushes and rollbacks that are under way divide the tree
        self.newest_block: Block | None = None  # the tree's last block as it came; None if it is flushed or not known
        self.keys = KeyIndex()  # Invariant: keys.indexed_seq <= high_seq
        self.published = PublishedBatches()  # Invariant: each lies in (tree.base_seq, high_seq], and no merge cuts it
        self.producers = ProducerTable()  # their results, by which a block that is sent again is written once
        self.producers.charge_to(self.account.producers)
        self.sinks = LastBatches()

        # Files. Invariant: a journal file stays while journal_references names it.
        self.journal_references = JournalReferences()
        self.has_manifest = False
        self.is_dropped = False  # Invariant: once True it stays True, and the tree is empty
        self.damage: SegmentDamaged | None = None  # why a segment cannot be opened: the partition takes no writes

        # Role, and seqs of the leader and of a majority. Invariant: leader_durable_seq and quorum_seq fall only in a
        # rollback or with a new branch. Both may be above high_seq on a follower that is behind.
        self.state = "leader"  # or "follower"
        self.pushes = PushState()
        self.needs_quorum = False  # in a set: rows that no majority has are not flushed unless memory is tight
        self.leader_durable_seq = 0  # on a follower: the leader's durable_seq
        self.knows_leader_seqs = False  # the leader has reported since the start, and since the last rollback
        self.quorum_seq = 0  # the last seq that a majority has on its disks
        self.leader_log: FailoverLog | None = None  # on a follower: the log that the leader sent last
        self.expected = Expected()  # on a follower: tables as of the end of a published batch to come

        # Observers.
        self.watchers = Watchers()
        self.on_durable: Callable[[], None] | None = None  # called when durable_seq has risen
        self.on_history_changed: Callable[[], None] | None = None  # called before rows of another history come

    @property
    def flushed_seq(self) -> int:
        """The last seq that segments cover. Rows at or below it may have been trimmed."""
        return self.tree.base_seq

    @property
    def stable_seq(self) -> int:
        """The last seq that no failover can take back: rows up to it may be compacted and purged."""
        return min(self.safe_seq, self.quorum_seq) if self.needs_quorum else self.safe_seq

    @property
    def safe_seq(self) -> int:
        """The last seq that both the leader and this node have on disk: the bound of a flush if memory is tight."""
        return self.durable_seq if self.state == "leader" else min(self.durable_seq, self.leader_durable_seq)

    @property
    def held_timestamp(self) -> int:
        """The last timestamp of the rows that are held, in microseconds; ``last_timestamp`` may be of lost rows."""
        return self.tree.last_timestamp or self.chain.newest_timestamp

    @property
    def merge_cuts(self) -> list[int]:
        """The seqs that no merged block may cross: bases of branches, ends of published batches, ``divisions``."""
        return [*(entry.base for entry in self.log), *self.published.cuts(self.tree.find), *self.divisions]

    def standing(self) -> tuple[int, int]:
        """Returns (term of the newest entry whose base is durable, or 0; durable_seq), to compare copies by."""
        seq = self.durable_seq
        for entry in self.log:
            if entry.base <= seq:
                return entry.term, seq
        return 0, seq

    def version_of(self, seq: int) -> Version:
        """Returns the version of the row at ``seq``."""
        return Version(self.id, self.log.branch_at(seq), seq)

    def index_keys(self, out_of_time: Callable[[], bool]) -> bool:
        """Adds the tree's newest blocks to the index by key; False if ``out_of_time()`` ended it: call it again."""
        return self.keys.catch_up(self.tree, out_of_time)

    # Visibility

    def visible_seq(self, level: Level) -> int:
        """Returns the last seq that streams and reads of ``level`` show: the end of a block or of a published batch.

        At ``disk`` a follower shows what both it and the leader have on disk. The leader had all that is flushed here.
        """
        if level == _MEMORY:
            return self.high_seq
        if level == _QUORUM:
            return end_at(self.tree, self.published, self.chain, min(self.durable_seq, self.quorum_seq))
        if self.state == "leader":
            return self.durable_seq
        seq = min(self.durable_seq, self.leader_durable_seq)
        return max(self.flushed_seq, end_at(self.tree, self.published, self.chain, seq))

    # Role

    def become(self, state: str, *, needs_quorum: bool, on_history_changed: Callable[[], None] | None) -> None:
        """Takes the node's role: ``state`` is "leader" or "follower", ``needs_quorum`` tells a member of a set."""
        self.state, self.needs_quorum, self.on_history_changed = state, needs_quorum, on_history_changed

    def report_durable(self, notify: Callable[[], None] | None) -> None:
        """Calls ``notify`` each time that ``durable_seq`` has risen; None ends it."""
        self.on_durable = notify

    def list_at(self, seq: int) -> None:
        """Notes the seq of the row of ``_feeds`` that lists the feed."""
        self.listed_seq = seq

    def set_leader_seqs(self, durable_seq: int, quorum_seq: int) -> None:
        """Notes the seqs that the leader reports: the last ones on its disk and on a majority's. Neither falls."""
        if durable_seq > self.leader_durable_seq or not self.knows_leader_seqs:
            self.knows_leader_seqs = True
            self.leader_durable_seq = max(durable_seq, self.leader_durable_seq)
            self.watchers.more_visible(_DISK)
        self.set_quorum_seq(quorum_seq)

    def set_quorum_seq(self, seq: int) -> None:
        """Notes that a majority has all rows up to ``seq`` on disk. A lower seq changes nothing."""
        if seq > self.quorum_seq:
            self.quorum_seq = seq
            self.watchers.more_visible(_QUORUM)

    def _forget_above(self, seq: int) -> None:
        """Lowers the leader's and the majority's seqs to ``seq``: their rows above are of another history."""
        self.leader_durable_seq = min(self.leader_durable_seq, seq)
        self.quorum_seq = min(self.quorum_seq, seq)

    # Writing

    def append(self, block: Block, branch: bytes, file: int, now: float) -> VersionRange:
        """Puts a block of ``branch``, which the journal's ``file`` holds, into the tree."""
        header = block.header
        self.journal_references.block(file, header.last_seq)
        before = self.tree.memory_bytes
        self.tree = tree = self.tree.append(block)
        self.account.change(tree.memory_bytes - before)
        self.newest_block, self.high_seq = block, header.last_seq
        self.last_timestamp = header.timestamp
        versions = tuple.__new__(VersionRange, (self.id, branch, header.first_seq, header.last_seq))
        if header.producer_id:
            self.producers.record(header.producer_id, header.producer_seq, versions, now)
        for notify in self.watchers.memory:
            notify()
        return versions

    def append_batch(
        self, blocks: Sequence[Block], sinks: Mapping[str, LastBatch], branch: bytes, file: int
    ) -> VersionRange:
        """Puts a published batch, which the journal's ``file`` holds, into the tree in one step."""
        after_seq, last = self.high_seq, blocks[-1].header
        self.replace_tree(self.tree.extended(blocks))
        self.newest_block, self.high_seq = blocks[-1], last.last_seq
        self.last_timestamp = last.timestamp
        self.published.add(PublishedBatch(after_seq, last.last_seq, len(blocks)))
        self.journal_references.block(file, last.last_seq)
        self.sinks.tell(sinks, self._time_now)
        self.watchers.more_visible(_MEMORY)
        return VersionRange(self.id, branch, after_seq + 1, last.last_seq)

    def note_sinks(self, sinks: Mapping[str, LastBatch], file: int) -> None:
        """Takes over last batches whose rows are held; the journal's ``file`` holds them."""
        self.sinks.tell(sinks, self._time_now)
        if sinks:
            self.keep_journal_file(file, self.high_seq)

    def _time_now(self, _seq: int) -> int:
        """Returns the time of a batch that ends with the newest row, or that came together with it."""
        return self.last_timestamp

    def _latest_time(self, seq: int) -> int:
        """Returns the latest time that a batch up to ``seq`` can have: no file has its own time."""
        covering = next(iter(self.chain.after(seq - 1)), None)
        return (0 if covering is None else covering.identity.newest_timestamp) or self.last_timestamp

    def keep_journal_file(self, file: int, seq: int) -> None:
        """Keeps the journal's ``file``, with a control record of rows up to ``seq``, until a manifest covers it.

        If all these rows are flushed, the next manifest does. So the journal of an idle partition can be trimmed.
        """
        if seq > self.flushed_seq:
            self.journal_references.block(file, seq)
        self.journal_references.control(file)

    def durable_through(self, seq: int) -> None:
        """Notes that the journal holds everything up to ``seq``, fsynced."""
        assert self.durable_seq <= seq <= self.high_seq
        self.durable_seq = seq
        for notify in self.watchers.disk:
            notify()
        if self.quorum_seq:  # a majority may have had it before this disk
            self.watchers.more_visible(_QUORUM)
        if self.on_durable is not None:
            self.on_durable()

    # History: branches, and the state that a leader sends

    def begin_branch(self, log: FailoverLog, file: int) -> None:
        """Takes over ``log``, whose newest entry begins at ``high_seq``, to lead; the journal's ``file`` holds it."""
        self.journal_references.control(file)
        self.log, self.leader_log = log, None
        self._forget_above(self.high_seq)

    def expect_log(self, log: FailoverLog) -> None:
        """Notes the leader's ``log``; its entries are taken over as the blocks up to their bases come."""
        known = self.log if self.leader_log is None else self.leader_log
        begun = [entry.base for entry in log if entry not in known]
        if begun:  # the reports about seqs above were of another branch
            self._forget_above(min(begun))
        self.leader_log = log

    def adopt_log(self, log: FailoverLog, file: int, *, rollbacks: int) -> None:
        """Takes over ``log``, whose blocks are held; the journal's ``file`` holds it. Ends the streams first.

        ``rollbacks`` is the new count: one more if an entry goes of which no row is held.
        """
        self.journal_references.control(file)
        self.rollbacks = rollbacks
        self.end_history()
        self.log = log

    def end_history(self) -> None:
        """Ends the streams and waits that were opened with the present history."""
        if self.on_history_changed is not None:
            self.on_history_changed()

    def expect(self, expected: Expected) -> None:
        """Keeps the tables that the leader sent ahead of a published batch."""
        self.expected = expected

    def adopt_expected(self) -> None:
        """Takes over the producers and last batches that are expected as of ``high_seq``, and expects no more."""
        producers = self.expected.producers_at(self.high_seq)
        if producers is not None:
            self.replace_producers(producers)
        self.sinks.tell(self.expected.sinks_at(self.high_seq), self._time_now)
        self.expected = Expected()

    def replace_producers(self, table: ProducerTable) -> None:
        """Takes over ``table``; the node's account no longer counts the table before it."""
        self.producers.charge_to(None)
        self.producers = table
        table.charge_to(self.account.producers)

    def adopt_producers(self, table: ProducerTable, seq: int, file: int) -> None:
        """Takes over the leader's producers as of ``seq``; the journal's ``file`` holds them."""
        self.keep_journal_file(file, seq)
        self.replace_producers(table)

    def drop_producers_above(self, file: int) -> None:
        """Forgets results above ``high_seq``, of blocks that will not come; the journal's ``file`` says so."""
        self.producers.drop_above(self.high_seq)
        self.journal_references.cut(self.high_seq, self.flushed_seq)
        self.journal_references.control(file)

    # Start: the manifest first, then the journal's records

    def restore(
        self, manifest: Manifest, chain: Chain, producers: ProducerTable, damage: SegmentDamaged | None = None
    ) -> None:
        """Takes over a manifest; ``chain`` has its segments. ``damage`` says why one of them cannot be opened."""
        self.chain, self.log, self.producers, self.damage = chain, manifest.log, producers, damage
        self.tree = Tree(manifest.flushed_seq)
        self.keys.drop_through(manifest.flushed_seq)
        self.high_seq = self.durable_seq = manifest.flushed_seq
        self.purge_seq, self.trim_seq, self.has_manifest = manifest.purge_seq, manifest.trim_seq, True
        self.last_timestamp, self.rollbacks = manifest.last_timestamp, manifest.rollbacks
        self.sinks.tell(manifest.sinks, self._latest_time)
        self.pushes.restore(manifest.segments)

    def set_damage(self, damage: SegmentDamaged | None) -> None:
        """Notes why a segment cannot be read, or that all can (None)."""
        self.damage = damage

    def restore_blocks(self, blocks: Sequence[Block]) -> None:
        """Puts blocks that the journal held into the tree; ``restore_results`` comes with their producers."""
        self.replace_tree(self.tree.extended(blocks))
        last = blocks[-1].header
        self.newest_block, self.high_seq, self.last_timestamp = blocks[-1], last.last_seq, last.timestamp

    def restore_references(self, files: Iterable[tuple[int, int]]) -> None:
        """Notes the files of the journal that hold the restored blocks: (file, the last seq in it)."""
        for file, last_seq in files:
            self.journal_references.block(file, last_seq)

    def restore_results(self, branch: bytes, results: ProducerResults, used_at: npt.NDArray[np.float64]) -> None:
        """Records the producers' results of restored blocks of ``branch``."""
        self.producers.record_all(self.id, branch, results, used_at)

    def restore_log(self, log: FailoverLog) -> None:
        """Takes over a log of the journal. No stream is open yet."""
        self.log = log

    def restore_rollback(self, log: FailoverLog, rollbacks: int, producers: ProducerTable) -> None:
        """Takes over a rollback of the journal. The blocks that it voided were not applied."""
        self.log, self.rollbacks = log, rollbacks
        self.replace_producers(producers)
        self.last_timestamp = self.held_timestamp

    def restore_producers(self, table: ProducerTable | None, seq: int = 0, now: float = 0.0) -> None:
        """Joins in a leader's table as of ``seq`` that the journal held; None: forgets results above ``high_seq``."""
        if table is None:
            self.producers.drop_above(self.high_seq)
        else:
            self.producers.join_told(table, self.flushed_seq, seq, now)

    # Storage

    def replace_tree(self, tree: Tree) -> None:
        """Puts ``tree`` in the place of the present one; it has the same rows, without those that were flushed."""
        self.account.change(tree.memory_bytes - self.tree.memory_bytes)
        self.tree = tree

    def install(self, chain: Chain, controls: int, *, purge_seq: int = 0, trim_seq: int = 0) -> None:
        """Notes that a durable manifest names ``chain`` and covers the first ``controls`` control records.

        ``purge_seq`` and ``trim_seq`` are those of the manifest if they rose.
        """
        self.chain, self.has_manifest = chain, True
        self.purge_seq, self.trim_seq = max(self.purge_seq, purge_seq), max(self.trim_seq, trim_seq)
        flushed_seq = max(chain.flushed_seq, self.flushed_seq)
        self.journal_references.manifest_written(controls, flushed_seq)
        if flushed_seq > self.flushed_seq:
            self.replace_tree(self.tree.drop_through(flushed_seq))
            self.keys.drop_through(flushed_seq)
            self.published.drop_through(flushed_seq)
            self.sinks.flushed(flushed_seq)
            if self.newest_block is not None and self.newest_block.header.last_seq <= flushed_seq:
                self.newest_block = None
            self.watchers.flushed()
        self.pushes.chain_changed()

    def install_received(
        self, chain: Chain, controls: int, seq: int, log: FailoverLog, rollbacks: int, purge_seq: int, trim_seq: int
    ) -> None:
        """As ``install``, of a chain with rows of the leader's that were never in the tree; it ends at ``seq``.

        All blocks of the tree are below ``seq``, and go. ``log`` and ``rollbacks`` are those from now on. The partition
        is damaged no more if all segments of ``chain`` were opened.
        """
        assert seq >= self.high_seq, "a received chain has all rows that were here"
        if log.branch != self.log.branch:
            self.end_history()
        self.log, self.rollbacks = log, rollbacks
        if not any(isinstance(segment, LostSegment) for segment in chain.segments):
            self.damage = None
        self.high_seq = self.durable_seq = seq
        self.adopt_expected()
        self.last_timestamp = max(self.last_timestamp, chain.newest_timestamp)
        self.replace_tree(Tree(seq))
        self.newest_block, self.keys, self.published = None, KeyIndex(), PublishedBatches()
        self.keys.drop_through(seq)
        self.sinks.flushed(seq)
        self.install(chain, controls, purge_seq=purge_seq, trim_seq=trim_seq)
        for level in Level:
            self.watchers.more_visible(level)
        self.watchers.flushed()
        if self.on_durable is not None:
            self.on_durable()

    def roll_back_to(self, seq: int, chain: Chain, log: FailoverLog, rollbacks: int, file: int | None = None) -> None:
        """Drops the blocks above ``seq``, which is the end of a block or of ``chain``, the segments that stay.

        The journal's ``file`` holds the rollback; None if a manifest does. ``rollbacks`` is the new count.
        """
        tree = self.tree.cut_above(seq) if seq > chain.flushed_seq else Tree(seq)
        self.replace_tree(tree)
        self.keys = KeyIndex()
        self.keys.drop_through(tree.base_seq)
        self.chain, self.log, self.rollbacks = chain, log, rollbacks
        self.newest_block = None
        self.high_seq, self.durable_seq = seq, min(self.durable_seq, seq)
        self.purge_seq, self.trim_seq = min(self.purge_seq, seq), min(self.trim_seq, seq)
        self.last_timestamp = self.held_timestamp
        self.published.drop_above(seq)
        self.published.drop_through(tree.base_seq)
        self.sinks.forget_above(seq)
        self.producers.drop_above(seq)
        self.journal_references.cut(seq, tree.base_seq)
        if file is not None:
            self.journal_references.control(file)
        self.leader_log, self.expected, self.knows_leader_seqs = None, Expected(), False
        self._forget_above(seq)

    def drop(self) -> None:
        """Frees the memory of the partition's rows and producers: its feed was dropped."""
        self.is_dropped = True
        self.replace_tree(Tree(self.high_seq))
        self.published = PublishedBatches()
        self.replace_producers(ProducerTable())

    def check(self) -> None:
        """Walks every invariant; AssertionError names the one that does not hold."""
        self.tree.check()
        self.chain.check()
        assert not self.chain.segments or self.chain.flushed_seq == self.flushed_seq, "the tree begins elsewhere"
        assert self.high_seq == self.tree.last_seq, "the tree does not end at the partition's last seq"
        assert self.durable_seq <= self.high_seq, "more is durable than was given"
        assert len(self.log) <= 1 or self.log[0].base <= self.high_seq, "the newest branch begins above the last seq"
        assert self.keys.indexed_seq <= self.high_seq, "the index by key is ahead of the tree"
        self.published.check(self.flushed_seq, self.high_seq, self.tree.find)
