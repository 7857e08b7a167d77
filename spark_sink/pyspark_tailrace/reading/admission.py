"""How much a micro-batch takes: where it ends in each partition. Pure.

A history is cut anywhere: each partition gets an even share of the rows, and what one does not need goes to the others.
A compact feed has a state only at the ends of its snapshots, so a batch takes whole ones, of one partition after the
other; the one that had its turn last comes last the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping


def even_shares(available: Mapping[int, int], rows: int) -> dict[int, int]:
    """How many of its ``available`` rows each partition gives, ``rows`` together where there are so many."""
    shares: dict[int, int] = {}
    left = rows
    smallest_first = sorted(available, key=lambda id: (available[id], id))
    for index, id in enumerate(smallest_first):
        # Rounded up, so that a row too few for everybody is somebody's all the same.
        share = min(available[id], -(-left // (len(smallest_first) - index)))
        shares[id] = share
        left -= share
    return shares


def whole_snapshots(
    available: Mapping[int, int], rows: int, next_snapshot: Callable[[int], int], turn: int
) -> dict[int, int]:
    """As ``even_shares``, but all that a partition has or its next snapshot: at least one, whatever its size.

    ``next_snapshot``: the rows of a partition's next one, at most as many as are available. ``turn``: the partition
    that is asked first.
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
    """The partition to be asked first after a batch that has ``taken`` so many rows of each."""
    served = [id for id in _in_turn(taken, turn) if taken[id]]
    return served[-1] + 1 if served else turn


def _in_turn(ids: Iterable[int], turn: int) -> list[int]:
    ordered = sorted(ids)
    return [id for id in ordered if id >= turn] + [id for id in ordered if id < turn]
