"""What a member had acknowledged and does not hold any more, until it is there again. Pure.

    acknowledged      |------------------->| 90        a run (50, 90] came as one segment, deduplicated
    common with the
    leader of today   |--------------->| 80 = R
    stands at         |--------->| 50                  nobody can stand inside of that segment: it went whole

Up to R what it said may have made a majority. If the logs have no branch in common R is not known, and it is all that
was durable: the leader's log has room for so many branches only, and a leader that has purged deletions is copied
anew. Standing below, it could help somebody to lead who does not have that
either. So it owes R, durably, before it goes back, and says so with each promise: a promotion needs somebody among
those who promised, whoever it is, who has as much. A debt is compared as a standing is (choosing.py): one of an older
term is paid by any history of a later one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tailrace.model import FEED_ID_BYTES
from tailrace.model.failover import SEQ_MAX
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.replication.standings import NOTHING, PartitionId, Standing, Standings


class Debt(NamedTuple):
    """``standing`` of ``partition_id`` was acknowledged, or less of the same history."""

    partition_id: PartitionId
    standing: Standing


# The list of feeds.
FEEDS = PartitionId(SYSTEM_FEED_ID, 0)


def unpaid(debts: Iterable[Debt], held: Standings) -> tuple[Debt, ...]:
    """Those of ``debts`` that ``held``, which is durable, does not cover.

    A feed that is not there was dropped, unless its row is among what is owed of ``_feeds`` itself.
    """
    left = tuple(debt for debt in debts if held.get(debt.partition_id, Standing(*NOTHING)) < debt.standing)
    if any(debt.partition_id == FEEDS for debt in left):
        return left
    return tuple(debt for debt in left if debt.partition_id in held)


def with_debt(debts: Iterable[Debt], debt: Debt) -> tuple[Debt, ...]:
    """``debts`` and this one; of a partition the higher one holds."""
    found = {other.partition_id: other for other in debts}
    found[debt.partition_id] = max(debt, found.get(debt.partition_id, debt))
    return tuple(sorted(found.values()))


def debts_to_json(debts: Iterable[Debt]) -> list[list[Any]]:
    """``[[feed id in hex, partition, term, seq], ...]``."""
    return [[debt.partition_id.feed_id.hex(), debt.partition_id.partition, *debt.standing] for debt in debts]


def debts_from_json(value: Any) -> tuple[Debt, ...]:
    """The reverse of ``debts_to_json``. ValueError."""
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
