"""All rows that were ever written in a set, by branch, and all leaderships.

A row is noted at the moment that a partition takes it, on any node. So a (branch, seq) with two rows is found at once,
on whichever nodes they are. Logs name the history that counts in the end: a `Lineage` is a log with the branches that
the log has dropped, which older logs tell.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from tests.processes.history import Row
from tests.processes.violation import Violation

from tailrace.model import Level


class Writer(NamedTuple):
    """The node that has given a row its seq: its machine, and the placement of its disk."""

    machine: str
    placement_id: bytes


class Leadership(NamedTuple):
    """A node led from a moment on. ``logs``: the log of each (feed id, partition) at that moment."""

    term: int
    moment: int
    writer: Writer
    forced: bool
    logs: dict


class Lineage:
    """A history: which branch holds each seq, from the first on. ``forks`` are (branch, term, base), oldest first."""

    def __init__(self, forks):
        self.forks = forks

    def branch_at(self, seq):
        """Returns the branch that holds ``seq``; None: unknown."""
        found = None
        for branch, _, base in self.forks:
            if base >= seq:
                break
            found = branch
        return found

    def holds(self, branch, seq):
        """Returns whether the row that ``branch`` gave ``seq`` is of this history."""
        return self.branch_at(seq) == branch


class Histories:
    """The rows and leaderships of a run. ``report`` is told each block."""

    def __init__(self, report):
        self._report = report
        self.rows = {}  # place -> (branch, seq) -> Row
        self.writers = {}  # place -> (branch, seq) -> Writer; of rows that a leader was seen to write
        self.places = {}  # place -> (key, value) -> [(branch, seq)]
        self.leaderships = []
        self.counted = {}  # (place, branch, seq) up to which a leader has counted a majority -> its machine
        self._parents = {}  # place -> branch -> (term, base, the branch before it or None)
        self._moments = itertools.count(1)
        self._watches = []  # one of each node that has come up

    def moment(self):
        """Returns the next moment on the clock that orders all records."""
        return next(self._moments)

    # Nodes

    def attach(self, machine, node):
        """Notes the rows that a node has, and from now on those that it takes, of every feed."""
        watched = set()

        def watch():
            for partition in node.feeds.partitions():
                if partition not in watched:
                    watched.add(partition)
                    self._note_held(machine, node, partition)
                    partition.watchers.watch(
                        Level.MEMORY, lambda partition=partition: self._appended(machine, node, partition, watch)
                    )
                    partition.watchers.watch(
                        Level.QUORUM, lambda partition=partition: self._counted(machine, partition)
                    )

        lead = node.leaderships.system.become_leader

        def leads(term):
            lead(term)
            watch()
            self._led(machine, node, term)

        node.leaderships.system.become_leader = leads
        self._watches.append(watch)
        watch()

    def look(self):
        """Notes from now on the rows of a feed that was just made."""
        for watch in self._watches:
            watch()

    def _note_held(self, machine, node, partition):
        self.log_seen(place_of(partition), partition.log)
        for block in partition.tree.blocks_after(partition.flushed_seq):
            self._note(machine, node, partition, block)

    def _appended(self, machine, node, partition, watch):
        self.log_seen(place_of(partition), partition.log)
        block = partition.newest_block
        if block is not None and block.header.last_seq == partition.high_seq:
            for one in _appended_blocks(partition):
                self._note(machine, node, partition, one)
            self._report.appended(f"{machine} {short(partition)}", block.header.last_seq)
        watch()  # there may be feeds that were not there before

    def _counted(self, machine, partition):
        """Notes up to where a leader knows rows on the disks of a majority, itself included."""
        place, seq = place_of(partition), min(partition.quorum_seq, partition.durable_seq)
        if partition.state == "leader" and seq:
            self.log_seen(place, partition.log)
            self.counted[place, self.true_branch(place, partition.log.branch_at(seq), seq), seq] = machine

    def _note(self, machine, node, partition, block):
        place = place_of(partition)
        rows, writers = self.rows.setdefault(place, {}), self.writers.setdefault(place, {})
        named = self.places.setdefault(place, {})
        columns = block.open_columns()
        for seq, *row in zip(columns.seqs(), columns.keys(), columns.values(), columns.timestamps(), strict=True):
            name, row = (self.true_branch(place, partition.log.branch_at(seq), seq), seq), Row(*row)
            known = rows.get(name)
            if known is None:
                rows[name] = row
                named.setdefault((row.key, row.value), []).append(name)
                if partition.state == "leader":
                    writers[name] = Writer(machine, node.identity.placement_id)
            elif known != row:
                raise Violation(
                    f"{machine}: {short(partition)} has {row} at seq {seq} of branch {name[0].hex()[:8]}, which is "
                    f"{known} elsewhere"
                )

    def _led(self, machine, node, term):
        logs = {place_of(partition): partition.log for partition in node.feeds.partitions()}
        for place, log in logs.items():
            self.log_seen(place, log)
        forced = 0 in node.members and node.members[0].local.file.now.forced
        writer = Writer(machine, node.identity.placement_id)
        for other in self.leaderships:
            if other.term == term and other.writer != writer and not (forced or other.forced):
                raise Violation(f"{machine} leads in term {term}, in which {other.writer.machine} has led")
        self.leaderships.append(Leadership(term, self.moment(), writer, forced, logs))
        self._report.operation("a node leads", f"{machine} in term {term}{', forced' if forced else ''}")

    # Logs

    def log_seen(self, place, log):
        """Notes the order of the branches of a log."""
        parents = self._parents.setdefault(place, {})
        for number, (branch, term, base) in enumerate(log):
            before = log[number + 1].branch if number + 1 < len(log) else None
            known = parents.get(branch)
            if known is not None and known[:2] != (term, base):
                raise Violation(
                    f"{short_place(place)}: branch {branch.hex()[:8]} began at {known[:2]}, and {term, base}"
                )
            if known is None or known[2] is None:
                parents[branch] = (term, base, before)

    def lineage(self, place, log):
        """Returns the whole history of a log, with the branches that the log has dropped."""
        forks = [(branch, term, base) for branch, term, base in reversed(log)]
        parents = self._parents.get(place, {})
        while forks and forks[0][0] in parents:
            term, base, before = parents[forks[0][0]]
            if before is None:
                break
            term, base, _ = parents[before]
            forks.insert(0, (before, term, base))
        return Lineage(forks)

    def true_branch(self, place, branch, seq):
        """Returns the branch that wrote ``seq``. A log that has dropped it names its oldest branch instead."""
        parents = self._parents.get(place, {})
        while branch in parents:
            _, base, before = parents[branch]
            if seq > base or before is None:
                break
            branch = before
        return branch

    def term_of(self, place, branch):
        """Returns the term in which a branch began."""
        return self._parents[place][branch][0]

    def history(self, place, log, high_seq):
        """Returns the rows of a history, that of seq 1 first; None for a row that no node was seen to write."""
        lineage, rows = self.lineage(place, log), self.rows.get(place, {})
        return [rows.get((lineage.branch_at(seq), seq)) for seq in range(1, high_seq + 1)]


def _appended_blocks(partition):
    """Returns the newest block, with all blocks that were published with it."""
    run = partition.published.above(partition.high_seq - 1)
    return [partition.newest_block] if run is None else partition.tree.blocks_after(run.after_seq)


def place_of(partition):
    """Returns the name that a partition has on all nodes."""
    return partition.feed_id, partition.id


def short(partition):
    return short_place(place_of(partition))


def short_place(place):
    feed_id, number = place
    return f"{feed_id.hex()[-4:]}/{number}"
