"""The checks of a fetched copy: what is in its directory after each fetch, whole, interrupted or refused.

Each partition that a reader finds is a state that existed at its seq, in the history that its log names. It never goes
back within that history. After a fetch that has come to its end it has every row that was acknowledged before, and the
directory has no other file.
"""

from __future__ import annotations

import shutil
from typing import NamedTuple

from tests.processes.history import Row
from tests.processes.violation import Violation

from tailrace import SegmentReader
from tailrace.errors import BadCopy, IncompleteCopy

# The files of a directory besides those of segments.
OTHER_NAMES = ("FEED.json", "LOCK")


class Begun(NamedTuple):
    """What was before a fetch began: acknowledgements, counts of faults, and the copy of each partition."""

    floors: object
    harmed: int
    failures: int
    was_full: bool
    node_failures: int
    is_faulty: bool
    compactions: int
    deaths: int
    held: dict


class CopyChecks:
    """The checks of one program. Its directory is copied to a real one, for a `SegmentReader`."""

    def __init__(self, world, program):
        self._world = world
        self._program = program
        self._directory = world.directory / program.name
        self._files = None  # those that were checked
        self._held = {}  # the PartitionCopy of each partition that is there
        self._index = {}  # of each partition: its PartitionCopy, and {key: [seq, value]}, kept as the guide says
        self._random = world.random_of(f"checks of {program.name}")

    def begin(self):
        """Returns what is known before a fetch."""
        counts = self._world.report.operations
        return Begun(
            self._world.checks.lasting_floors(),
            self._world.network.harmed,
            self._program.disk.failures,
            self._program.disk.is_full,
            self._node_failures(),
            self._is_faulty(),
            counts["compaction"] + counts["purge"],
            counts["node dies"],
            dict(self._held),
        )

    def _node_failures(self):
        return sum(machine.failures for machine in self._world.machines)

    def _is_faulty(self):
        return any(machine.has_faults for machine in self._world.machines)

    def _nodes_have_failed(self, begun):
        """Returns whether a disk of a node has had a fault since then: a flush may have been refused."""
        return begun.is_faulty or self._is_faulty() or self._node_failures() > begun.node_failures

    @property
    def may_be_damaged(self):
        """Whether a node may say that it cannot read a segment: it does so until its restart."""
        return self._node_failures() > 0

    # Readers

    def _export(self):
        """Makes the real directory equal to that of the program. Returns whether it has changed."""
        files = self._program.disk.files(self._program.folder)
        if files == self._files:
            return False
        shutil.rmtree(self._directory, ignore_errors=True)
        for name, data in files.items():
            path = self._directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self._files = files
        return True

    def read(self):
        """Returns a reader of the copy, and the rows of each partition: {key: [seq, value]}."""
        self._export()
        reader = SegmentReader(self._directory, partitions=sorted(self._held))
        return reader, {number: self._rows(reader, number) for number in reader.partitions}

    @staticmethod
    def _rows(reader, partition, from_seq=1):
        found = {}
        for event in reader.mutations(partition, from_seq=from_seq, latest=True):
            for key, *row in zip(event.keys(), event.seqs(), event.values(), strict=True):
                found[key] = row
        return found

    def check_readable(self, when):
        """Checks each partition that was ever complete, and those that have become so."""
        if not self._export():
            return
        who = f"{self._program.name} {when}"
        if not (self._directory / "FEED.json").exists():
            if self._held:
                raise Violation(f"{who}: FEED.json is gone")
            return
        for number in range(self._world.plan.partitions):
            try:
                reader = SegmentReader(self._directory, partitions=[number])
            except (IncompleteCopy, ValueError) as error:
                if number in self._held:
                    raise Violation(f"{who}: partition {number} was whole, and now: {error}") from error
                continue
            try:
                self._check_partition(who, reader, number)
            except BadCopy as error:
                raise Violation(f"{who}: partition {number} cannot be read: {error}") from error

    def _check_partition(self, who, reader, number):
        copy = reader.partitions[number]
        history = self._world.checks.history_at(who, number, copy.log, copy.seq)
        before = self._held.get(number)
        if before is not None and copy != before:
            self._check_order(who, number, before, copy)
        self._held[number] = copy
        rows = {}
        for event in reader.mutations(number, latest=False):
            columns = zip(event.seqs(), event.keys(), event.values(), event.timestamps(), strict=True)
            for seq, *row in columns:
                written = history[seq - 1]
                if written is not None and written != Row(*row):
                    raise Violation(f"{who}: partition {number} has {Row(*row)} at {seq}, where {written} was written")
                if seq in rows or (rows and seq < max(rows, default=0)):
                    raise Violation(f"{who}: partition {number} has {seq} out of order")
                rows[seq] = Row(*row)
        reader.verify()
        if None in history:
            return
        self._check_gets(who, reader, number, history)
        if self._world.plan.retention == "history" and len(rows) != copy.seq:
            raise Violation(f"{who}: partition {number} has {len(rows)} rows of {copy.seq}")
        newest = self._rows(reader, number)
        self._check_newest(who, number, newest, history, copy.purge_seq)

    def _check_gets(self, who, reader, number, history):
        """Looks up some keys."""
        newest = {row.key: row.value for row in history}
        keys = [key for key in self._world.keys.all_keys() if self._world.partition_of(key) == number]
        for key in self._random.sample(keys, min(2, len(keys))):
            item = reader.get(key)
            if (None if item is None else item.value) != newest.get(key):
                raise Violation(f"{who}: {key!r} is looked up as {item!s:.80}, and is {newest.get(key)!r:.60}")

    def _check_newest(self, who, number, held, history, purge_seq):
        """Checks that ``held`` has the newest row of each key; only a deletion up to ``purge_seq`` may be missing."""
        expected = {row.key: [seq, row.value] for seq, row in enumerate(history, 1)}
        for key in sorted(expected.keys() | held.keys()):
            row, found = expected.get(key), held.get(key)
            if found == row or (found is None and row[1] is None and row[0] <= purge_seq):
                continue
            raise Violation(
                f"{who}: partition {number} has {found!s:.80} as {key!r} at {len(history)}, not {row!s:.80}"
            )

    def _check_order(self, who, number, before, copy):
        """Checks that a copy goes forward, or has gone to a history that has lost rows of the one before."""
        if self._world.checks.goes_on(number, before.log, before.seq, copy.log):
            if copy.seq < before.seq:
                raise Violation(f"{who}: partition {number} went from {before.seq} back to {copy.seq}")
            return
        if copy.log.term <= before.log.term:
            raise Violation(f"{who}: partition {number} went from term {before.log.term} back to {copy.log.term}")
        self._world.report.operation("fetch of a rollback", f"{self._program.name} {number}")
        self._world.checks.rolled_back(self._program.name, number, f"below {before.seq}", self._program.level)

    def check_state(self, number, state, position):
        """Checks a copy to which the stream behind it was added, at the end of a snapshot."""
        who = f"{self._program.name}, by stream"
        history = self._world.checks.history_at(who, number, position.log, position.seq)
        if None not in history:
            self._check_newest(who, number, state, history, position.seq)

    # Fetches that have come to their end

    def check_fetched(self, fetched, begun):
        """Checks the copy after a fetch without an error."""
        program, checks = self._program, self._world.checks
        self.check_readable("after a fetch")
        for number, partition in fetched.partitions.items():
            who = f"{program.name}, partition {number}"
            copy = self._held.get(number)
            if copy is None or (copy.seq, len(copy.segments)) != (partition.seq, partition.segments):
                raise Violation(f"{who}: the fetch said {partition}, and there is {copy!s:.200}")
            before = begun.held.get(number)
            if partition.is_behind:
                self._world.report.operation("fetch: the node is behind", who)
                continue
            told = before is None or partition.rolled_back_to is not None or before.seq == 0
            if not told and not checks.goes_on(number, before.log, before.seq, copy.log):
                raise Violation(f"{who}: the node has lost rows of the copy, and the fetch did not say so")
            is_promised = program.level == "quorum" or not self._world.plan.is_set
            if is_promised and not self._nodes_have_failed(begun):
                checks.check_has(who, number, copy.log, copy.seq, begun.floors)
            self._check_names(number, copy)
        self._follow(fetched)
        self._count(fetched, begun)

    def _check_names(self, number, copy):
        named = {f"{number}/{segment.file_name}" for segment in copy.segments} | {f"{number}/CHECKPOINT.json"}
        there = {name for name in self._files if name.startswith(f"{number}/")}
        if named != there:
            raise Violation(f"{self._program.name}: the directory has {sorted(named ^ there)} too many, or not")

    def _follow(self, fetched):
        """Keeps an index by the changes since the fetch before, and checks it."""
        reader = SegmentReader(self._directory, partitions=list(fetched.partitions))
        for number, copy in reader.partitions.items():
            before, rows = self._index.get(number, (None, {}))
            is_whole = (
                before is None
                or copy.purge_seq > before.seq
                or copy.seq < before.seq
                or (before.seq and copy.log.branch_at(before.seq) != before.log.branch_at(before.seq))
            )
            rows = self._rows(reader, number) if is_whole else rows | self._rows(reader, number, before.seq + 1)
            self._index[number] = copy, rows
            who = f"{self._program.name}, by changes since {None if is_whole else before.seq}"
            history = self._world.checks.history_at(who, number, copy.log, copy.seq)
            if None not in history:
                self._check_newest(who, number, rows, history, copy.seq)

    def _count(self, fetched, begun):
        report, counts = self._world.report, self._world.report.operations
        if fetched.fetched_bytes:
            report.operation("fetch of something new", self._program.name)
            if counts["compaction"] + counts["purge"] > begun.compactions:
                report.operation("fetch during a compaction")
            if counts["node dies"] > begun.deaths:
                report.operation("fetch through the death of a node")
            if self._world.network.harmed > begun.harmed:
                report.operation("fetch through damage")
