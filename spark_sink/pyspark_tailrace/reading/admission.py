"""Decides at which seq a micro-batch ends in each partition. Pure.

A history can be cut anywhere: each partition gives an even share of the rows, or all it has if that is less. A compact
feed has a state only at the ends of its snapshots, so a batch takes whole snapshots of one partition after the other.
The partition that was served last comes last the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping


def even_shares(available: Mapping[int, int], rows: int) -> dict[int, int]:
    """Returns how many of its ``available`` rows each partition gives: ``rows`` in all, or all rows if fewer."""
    shares: dict[int, int] = {}
    left = rows
    smallest_first = sorted(available, key=lambda id: (available[id], id))
    for index, id in enumerate(smallest_first):
        # Rounded up, so that fewer rows than partitions are still given.
        share = min(available[id], -(-left // (len(smallest_first) - index)))
        shares[id] = share
        left -= share
    return shares


def whole_snapshots(
    available: Mapping[int, int], rows: int, next_snapshot: Callable[[int], int], turn: int
) -> dict[int, int]:
    """Returns the rows of each partition: all of them, or those of its next snapshot; at least one snapshot in all.

    ``next_snapshot`` returns the rows of a partition's next snapshot, at most those available. ``turn`` is the
    partition that comes first.
    """
    shares = dict.fromkeys(available, 0)
    left = rows
    for id in _in_turn(available, turn):
        if left <= 0:
            break
        share = available[id] if available[id] <= left else next_snapshot(id)
        if share <= left or left == rows:
            shares[id] = share
            left -= share
    return shares


def next_turn(taken: Mapping[int, int], turn: int) -> int:
    """Returns the partition that comes first after a batch with these rows of each partition."""
    served = [id for id in _in_turn(taken, turn) if taken[id]]
    return served[-1] + 1 if served else turn


def _in_turn(ids: Iterable[int], turn: int) -> list[int]:
    ordered = sorted(ids)
    return [id for id in ordered if id >= turn] + [id for id in ordered if id < turn]
