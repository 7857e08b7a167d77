"""Bugs of groups: of commits, and of positions."""

from __future__ import annotations

from tailrace.model import Level
from tailrace_server.feeds.consumer_rows import OwnedPartition
from tailrace_server.replication import consumer_changes
from tailrace_server.replication.consumer_changes import ConsumerChanges

from .bug import Bug


def _commit_of_anyone(self, commit):
    """Stores the positions of any member, whatever its generation is."""
    known, now_us = self.rows().of(commit.consumer), self._clock.wall_us()
    changed = {
        partition: known[partition]._replace(position=commit.positions[partition], committed_us=now_us)
        for partition in commit.generations
        if partition in known
    }
    if changed:
        self.write(commit.consumer, changed)
    return []


def _granted_now(self, join, partitions):
    """Has the next owner begin behind all that is there, and not at the last commit."""
    known, now_us, granted = self.rows().of(join.consumer), self._clock.wall_us(), {}
    for partition in partitions:
        before = known.get(partition.id, OwnedPartition(0, b"", None, now_us))
        position = consumer_changes.start_of(partition, "now", Level.DISK)
        granted[partition.id] = OwnedPartition(before.generation + 1, join.member, position, before.committed_us)
    return granted


BUGS = {
    "a commit of any generation": Bug([(ConsumerChanges, "commit", _commit_of_anyone)], groups=4),
    "a partition that falls back to now": Bug([(ConsumerChanges, "granted", _granted_now)], groups=0),
}
