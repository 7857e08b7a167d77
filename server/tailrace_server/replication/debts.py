"""Debts: rows that a member has acknowledged and lost, until it has them again. Pure.

    acknowledged      |------------------->| 90        a run (50, 90] came as one segment, deduplicated
    common with the
    leader of today   |--------------->| 80 = R
    stands at         |--------->| 50                  a member cannot stand inside that segment: it went whole

Up to R the member's acknowledgements may have made a majority. If the logs have no branch in common, R is not known.
All durable rows count then: the leader's log has room for a limited number of branches, and a leader that has purged
deletions is copied anew.

Below R the member could help a node to lead that lacks these rows, too. So it owes R, durably, before it rolls back,
and tells its debts with each promise. A promotion needs one member, among those that promised, that has as much. Debts
compare as standings do (standings.py): any history of a later term pays a debt of an older one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tailrace.model import FEED_ID_BYTES
from tailrace.model.failover import SEQ_MAX
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.replication.standings import NOTHING, PartitionId, Standing, Standings


class Debt(NamedTuple):
    """A standing that was acknowledged, or less of the same history."""

    partition_id: PartitionId
    standing: Standing


# The list of feeds.
FEEDS = PartitionId(SYSTEM_FEED_ID, 0)


def unpaid(debts: Iterable[Debt], held: Standings, *, owes_feeds: bool = False) -> tuple[Debt, ...]:
    """Returns those of ``debts`` that ``held``, which is durable, does not cover.

    A feed that is missing was dropped, unless a debt of ``_feeds`` may include its row.

    Args:
        debts: Those of one group.
        held: The standings of this node in that group.
        owes_feeds: Whether this node has a debt of ``_feeds`` in another group.
    """
    left = tuple(debt for debt in debts if held.get(debt.partition_id, Standing(*NOTHING)) < debt.standing)
    if owes_feeds or any(debt.partition_id == FEEDS for debt in left):
        return left
    return tuple(debt for debt in left if debt.partition_id in held)


def with_debt(debts: Iterable[Debt], debt: Debt) -> tuple[Debt, ...]:
    """Returns ``debts`` and ``debt``. The higher one of a partition counts."""
    found = {other.partition_id: other for other in debts}
    found[debt.partition_id] = max(debt, found.get(debt.partition_id, debt))
    return tuple(sorted(found.values()))


def debts_to_json(debts: Iterable[Debt]) -> list[list[Any]]:
    """Returns ``[[feed id in hex, partition, term, seq], ...]``."""
    return [[debt.partition_id.feed_id.hex(), debt.partition_id.partition, *debt.standing] for debt in debts]


def debts_from_json(value: Any) -> tuple[Debt, ...]:
    """Returns the reverse of ``debts_to_json``. Raises ValueError."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"{value!r:.100} is no list of debts")
    return tuple(_from_json(item) for item in value)


def _from_json(item: Any) -> Debt:
    try:
        text, *numbers = item
        feed_id = bytes.fromhex(text)
        partition, term, seq = numbers
    except (TypeError, ValueError):
        raise ValueError(f"{item!r:.100} is no debt") from None
    if len(feed_id) != FEED_ID_BYTES or not all(type(n) is int and 0 <= n <= SEQ_MAX for n in numbers):
        raise ValueError(f"{item!r:.100} is no debt")
    return Debt(PartitionId(feed_id, partition), Standing(term, seq))
