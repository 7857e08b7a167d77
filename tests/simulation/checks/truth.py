"""The truth of one node: all rows that it has ever written, and the rows that programs may therefore have.

Every row is noted at the moment that it gets its seq. So the whole history is known, with the rows that crashes take
and compactions drop. From it follows, for each key, which row an index may have:

    floor   the greatest seq that the index has to cover: an acknowledged write before a barrier, its own checkpoint
    key     its newest row up to the floor, or any later one; no row if there is none, or if a later one is a deletion

The promises to writers and readers are those of `tests.processes`: `History` takes the answers, `Verdict` judges them
in the end by the history that stands.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from tests.processes.history import History, Row
from tests.processes.verdict import Verdict
from tests.processes.violation import Violation

from tailrace.model import Level

from .batches import Batches

# How many rows may be written between the look-up of a key and the seq that the node tells for it.
READ_AGAIN_ROWS = 50


class PartitionTruth:
    """A partition's rows, that of seq 1 first."""

    def __init__(self, number, batches):
        self.number = number
        self.runs = batches.standing(number)
        self.rows = []
        self.lost = set()  # (seq, key, value) of rows that a crash has taken
        self.seqs = defaultdict(list)  # of each key
        self.acknowledged = 0  # the greatest seq that a writer was told of, at any level
        self.acknowledged_on_disk = 0
        self.forks = []  # the seq that each crash has left, oldest first

    def append(self, row):
        self.rows.append(row)
        self.runs.append(len(self.rows), row.key, row.value)
        self.seqs[row.key].append(len(self.rows))

    def cut(self, high_seq):
        """Drops the rows above ``high_seq``, which a crash has taken."""
        self.runs.cut(high_seq)
        self.lost.update((seq, row.key, row.value) for seq, row in enumerate(self.rows[high_seq:], high_seq + 1))
        del self.rows[high_seq:]
        for key, seqs in list(self.seqs.items()):
            del seqs[bisect_right(seqs, high_seq) :]
            if not seqs:
                del self.seqs[key]
        self.acknowledged = min(self.acknowledged, high_seq)
        self.forks.append(high_seq)

    def newest(self, key, at):
        """Returns the seq of the newest row of ``key`` up to ``at``; 0: none."""
        seqs = self.seqs.get(key, ())
        index = bisect_right(seqs, at)
        return seqs[index - 1] if index else 0

    def was_lost(self, key, value, seq):
        """Returns whether a crash has taken such a row, or an older deletion of the key if it is a deletion."""
        if (seq, key, value) in self.lost:
            return True
        return value is None and any(lost[0] < seq and lost[1:] == (key, None) for lost in self.lost)

    def deleted_since(self, key, seq):
        """Returns whether a row of ``key`` at or after ``seq`` is a deletion."""
        return any(self.rows[later - 1].value is None for later in self.seqs.get(key, ()) if later >= seq)

    def lately_absent(self, key, seq):
        """Returns whether ``key`` had no value at ``seq`` or shortly before: keys are read again one by one."""
        newest = self.newest(key, seq)
        while newest and newest > seq - READ_AGAIN_ROWS and self.rows[newest - 1].value is not None:
            newest = self.newest(key, newest - 1)
        return not newest or self.rows[newest - 1].value is None

    def still(self, floor, forks):
        """Returns how much crashes have left of a floor that was taken when there were ``forks`` forks."""
        return min([floor, *self.forks[forks:]])


class ToldHistory(History):
    """A history that tells each acknowledgement at once."""

    on_acknowledged = None

    def acknowledge(self, write, versions):
        self.on_acknowledged(write, versions)
        super().acknowledge(write, versions)


class Truth:
    """The truth of one feed."""

    def __init__(self, partitions, report, *, in_parts=False):
        self.history = ToldHistory(partitions)
        self.history.on_acknowledged = self.acknowledged
        self.batches = Batches(in_parts)
        self.partitions = {number: PartitionTruth(number, self.batches) for number in range(partitions)}
        self._report = report

    # The node

    def attach(self, node, feed_name):
        """Notes from now on the rows of the feed on a node that has just started."""
        for partition in node.feeds.named(feed_name).partitions:
            partition.watchers.watch(Level.MEMORY, lambda partition=partition: self._appended(partition))

    def _take_unanswered(self, partition, truth, what):
        """Adds the block whose record was written when the node died, before `_appended` was called."""
        for block in partition.tree.blocks_after(len(truth.rows)):
            columns = block.open_columns()
            for seq, *row in zip(columns.seqs(), columns.keys(), columns.values(), columns.timestamps(), strict=True):
                if seq > len(truth.rows):
                    truth.append(Row(*row))
        if partition.high_seq > len(truth.rows):
            raise Violation(f"{what}: it is at {partition.high_seq}, and {len(truth.rows)} rows were written")

    def _appended(self, partition):
        truth = self.partitions[partition.id]
        for block in self._appended_blocks(partition, len(truth.rows)):
            header = block.header
            if header.first_seq != len(truth.rows) + 1:
                raise Violation(f"{partition.id}: {header.first_seq} is given after {len(truth.rows)}")
            columns = block.open_columns()
            for row in zip(columns.keys(), columns.values(), columns.timestamps(), strict=True):
                truth.append(Row(*row))
            self._report.appended(partition.id, header.last_seq)

    @staticmethod
    def _appended_blocks(partition, after_seq):
        """Returns the newest block, or all blocks that were published together."""
        newest = partition.newest_block
        is_one = newest.header.first_seq <= after_seq + 1
        return [newest] if is_one else list(partition.tree.blocks_after(after_seq))

    def restarted(self, node, feed_name, starts, *, lost_power, may_be_clean):
        """Checks a node that has come up after ``starts`` starts, most of which may have failed.

        ``lost_power``: there was a power cut since then. ``may_be_clean``: the other one was being stopped.
        """
        for partition in node.feeds.named(feed_name).partitions:
            truth, high_seq = self.partitions[partition.id], partition.high_seq
            what = f"partition {partition.id} after {starts} starts"
            self._take_unanswered(partition, truth, what)
            if high_seq < truth.acknowledged_on_disk:
                raise Violation(f"{what}: it is at {high_seq}; {truth.acknowledged_on_disk} was acknowledged at disk")
            if not lost_power and high_seq < truth.acknowledged:
                raise Violation(f"{what}: it is at {high_seq}, and {truth.acknowledged} was acknowledged")
            if high_seq < len(truth.rows):
                self._report.lost(len(truth.rows) - high_seq)
            truth.cut(high_seq)
            starts_min = 0 if may_be_clean else 1
            self.history.branches[partition.id].started(partition.log, starts_min, starts, what)
        self.attach(node, feed_name)

    # Writers

    def acknowledged(self, write, versions):
        """Notes an acknowledged write."""
        partition, branch, _, last_seq = versions
        truth = self.partitions[partition]
        stands = last_seq <= len(truth.rows) and branch in self.history.branches[partition].names(last_seq)
        if stands:  # else a crash took it while the answer was under way
            truth.acknowledged = max(truth.acknowledged, last_seq)
        if write.lasting:
            if not stands:
                raise Violation(f"{versions} were acknowledged at disk, and were lost before")
            truth.acknowledged_on_disk = max(truth.acknowledged_on_disk, last_seq)

    # Sinks

    def asked_to_publish(self, shares):
        """Notes a batch that is about to be published; ``shares``: {partition: Share}."""
        for share in shares.values():
            self.batches.asked(share)
            for row in share.rows:
                self.history.ask([row])

    def published(self, batch, partitions, written):
        """Checks that a batch is in all of ``partitions``, and at the seqs that the answer names in ``written``."""
        for number in partitions:
            truth = self.partitions[number]
            run = truth.runs.of(batch)
            if run is None:
                raise Violation(f"{batch} was answered as published, and partition {number} does not have it")
            if number in written:
                _, branch, first_seq, last_seq = written[number]
                names = self.history.branches[number].names(last_seq)
                if not truth.runs.stands_at(batch, first_seq, last_seq) or branch not in names:
                    raise Violation(f"{batch} was answered as {written[number]}, and stands at {number}/{run[1:]}")
            truth.acknowledged = max(truth.acknowledged, run.last_seq)
            truth.acknowledged_on_disk = max(truth.acknowledged_on_disk, run.last_seq)
            self.history.reached(number, run.last_seq)
        self.history.answered()

    def check_stands(self, number, seq, who):
        """Checks that a program at ``seq`` has no batch in part."""
        self.partitions[number].runs.check_stands(seq, who)

    def floors(self):
        """Returns the seq that a barrier has to cover from now on, and the number of forks, of each partition."""
        return {number: (truth.acknowledged, len(truth.forks)) for number, truth in self.partitions.items()}

    def has_lost(self, positions):
        """Returns whether a reader at ``positions`` has rows that a crash has taken, and has not heard of it."""
        return any(
            position.seq > entry.base
            for number, position in positions.items()
            for entry in self.history.branches[number].log
            if all(entry.branch != known.branch for known in position.log)
        )

    # Indexes

    def check_rows(self, mutations, *, may_be_lost):
        """Checks that rows that were delivered are of the history, or of one that a crash has ended.

        A deletion may also be that of a key which a follower has looked up after a rollback, and which was not there.
        """
        for partition, key, value, seq, _ in mutations:
            truth = self.partitions[partition]
            if seq <= len(truth.rows) and truth.rows[seq - 1][:2] == (key, value):
                continue
            if value is None and truth.lately_absent(key, seq):
                continue
            if not may_be_lost or not truth.was_lost(key, value, seq):
                raise Violation(f"{partition}/{seq} was delivered as {key!r}: {value!r}, which it never was")

    def value_at(self, partition, seq, key):
        """Returns the value of a row; if there is no such row, a value that no row has."""
        rows = self.partitions[partition].rows
        return rows[seq - 1].value if seq <= len(rows) and rows[seq - 1].key == key else b"no value has blanks"

    def left_out(self, partition, after, before, prefix):
        """Returns whether a row of a key with ``prefix`` lies between two seqs."""
        return any(row.key.startswith(prefix) for row in self.partitions[partition].rows[after : before - 1])

    def check_covers(self, partition, floor, held, what, prefix=b""):
        """Checks that ``held``, {key: (seq, value)}, has each key's newest row up to ``floor``, or a later one.

        ``prefix``: only keys that begin with it count.
        """
        truth = self.partitions[partition]
        for key in truth.seqs:
            if not key.startswith(prefix):
                continue
            newest = truth.newest(key, floor)
            seq, value = held.get(key, (None, None))
            if seq is None:
                if newest and truth.rows[newest - 1].value is not None and not truth.deleted_since(key, newest):
                    raise Violation(f"{what}: {key!r} of {partition}/{newest} is missing, at {floor}")
            elif seq < newest:
                raise Violation(f"{what}: {key!r} is that of {partition}/{seq}, not of {newest}, at {floor}")
            elif 0 < seq <= len(truth.rows) and truth.rows[seq - 1][:2] != (key, value):
                raise Violation(f"{what}: {partition}/{seq} is held as {key!r}: {value!r}")

    def state(self):
        """Returns the present keys and values."""
        state = {}
        for truth in self.partitions.values():
            for row in truth.rows:
                if row.value is None:
                    state.pop(row.key, None)
                else:
                    state[row.key] = row.value
        return state

    def judge(self):
        """Compares all answers with the history that stands."""
        Verdict(self.history, {number: truth.rows for number, truth in self.partitions.items()}).check()
