"""Checks that all copies of a partition are equal, once everything has healed.

Two copies may differ in what they have folded and purged, so of each copy is asked: every row that it holds is the one
that was written at that (branch, seq); the newest row of each key is that of the history; by key it finds just that;
and where the feed keeps its history no row is missing. Copies with one log and one seq for which this holds are equal.
"""

from __future__ import annotations

from tests.partitions import blocks_of
from tests.processes.history import Row
from tests.processes.violation import Violation

from tailrace_server.partition.newest_row import newest_row

from .histories import place_of, short


def rows_of(partition):
    """Returns {seq: Row} of all rows of a copy."""
    found = {}
    for block in blocks_of(partition):
        columns = block.open_columns()
        rows = zip(columns.seqs(), columns.keys(), columns.values(), columns.timestamps(), strict=True)
        for seq, *row in rows:
            if seq in found:
                raise Violation(f"{short(partition)} holds seq {seq} twice")
            found[seq] = Row(*row)
    return found


def newest(history):
    """Returns {key: (seq, Row)} of the newest row of each key in a history."""
    found = {}
    for seq, row in enumerate(history, 1):
        if row is not None:
            found[row.key] = (seq, row)
    return found


def difference(one, other):
    """Returns how the feeds, logs or seqs of two nodes differ; "": they do not. Cheap: called again and again."""
    feeds = [{feed.info.feed_id: feed.info for feed in node.feeds} for node in (one, other)]
    if feeds[0] != feeds[1]:
        return f"one has feeds {[i.name for i in feeds[0].values()]}, the other {[i.name for i in feeds[1].values()]}"
    partitions = [{place_of(p): p for p in node.feeds.partitions()} for node in (one, other)]
    for place, partition in partitions[0].items():
        copy = partitions[1][place]
        if partition.log != copy.log:
            return f"{short(partition)} has log {shown(partition.log)}, and {shown(copy.log)}"
        if partition.high_seq != copy.high_seq or copy.high_seq != copy.durable_seq:
            return (
                f"{short(partition)} has come to {partition.durable_seq}/{partition.high_seq}, and to "
                f"{copy.durable_seq}/{copy.high_seq}"
            )
    return ""


def shown(log):
    return [(branch.hex()[:8], term, base) for branch, term, base in log]


def check_copy(machine, node, histories):
    """Checks that a node's copies have the rows of the histories that their logs name.

    Raises:
        Violation: A row is missing, wrong, or not found by its key.
    """
    node.check()
    for partition in node.feeds.partitions():
        history = histories.history(place_of(partition), partition.log, partition.high_seq)
        feed = node.feeds.of_id(partition.feed_id).info
        what = f"{machine}: {short(partition)}"
        held = rows_of(partition)
        _check_rows(what, held, history)
        if feed.retention == "history":
            _check_whole(what, held, partition)
            history[: partition.trim_seq] = [held.get(seq) for seq in range(1, partition.trim_seq + 1)]
        _check_newest(what, held, history)
        _check_timestamps(what, history)
        _check_by_key(what, partition, history)


def _check_whole(what, held, partition):
    """Checks that a copy of a history has every row above its trim seq."""
    missing = [seq for seq in range(partition.trim_seq + 1, partition.high_seq + 1) if seq not in held]
    if missing:
        raise Violation(f"{what} keeps its history above {partition.trim_seq}, and seq {missing[0]} is missing")


def _check_rows(what, held, history):
    for seq, row in held.items():
        written = history[seq - 1]
        if written is not None and row != written:
            raise Violation(f"{what} holds {row} at seq {seq}, where {written} was written")
        history[seq - 1] = row  # if no node was seen to write a row, the copy is the witness


def _check_newest(what, held, history):
    of_copy = newest([held.get(seq) for seq in range(1, len(history) + 1)])
    for key, (seq, row) in newest(history).items():
        found = of_copy.get(key)
        if found == (seq, row) or (found is None and row.value is None):
            continue
        raise Violation(f"{what}: the newest of {key!r} is {found}, not {(seq, row)}")


def _check_timestamps(what, history):
    before = 0
    for seq, row in enumerate(history, 1):
        if row is not None:
            if row.timestamp < before:
                raise Violation(f"{what}: the timestamp falls at seq {seq}")
            before = row.timestamp


def _check_by_key(what, partition, history):
    partition.keys.catch_up(partition.tree, lambda: False)
    for key, (seq, row) in newest(history).items():
        found = newest_row(partition, key)
        if found is None:
            if row.value is not None:
                raise Violation(f"{what}: {key!r} of seq {seq} is not found by its key")
        elif (found.seq, found.value) != (seq, row.value):
            raise Violation(f"{what}: {key!r} is found at seq {found.seq}, not at {seq}")
