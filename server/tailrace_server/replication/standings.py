"""Compares how far members have each partition, and chooses the history that a promotion goes on with. Pure.

A standing is a term and a durable seq: the term of the newest branch that has begun at or below the seq. The highest
standing wins, term first: a majority never acknowledged a long tail of an older term. Equal standings are the same
history.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

from tailrace.errors import ProtocolError
from tailrace.model import FEED_ID_BYTES
from tailrace.model.failover import SEQ_MAX

NOTHING = (0, 0)


class PartitionId(NamedTuple):
    """A partition of a feed."""

    feed_id: bytes
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of feed {self.feed_id.hex()}"


class Standing(NamedTuple):
    """How far a member has a partition, durably, at the end of a run."""

    term: int
    seq: int


Standings = Mapping[PartitionId, Standing]


class Best(NamedTuple):
    """The member with the highest standing of a partition; ``address`` is "" for this node."""

    address: str
    standing: Standing


def choose(
    own: Standings, others: Mapping[str, Standings], partition_ids: Iterable[PartitionId]
) -> dict[PartitionId, Best]:
    """Returns the member that has most of each of these partitions. This node wins ties, then the first address."""
    chosen = {}
    for partition_id in partition_ids:
        best = Best("", own.get(partition_id, Standing(*NOTHING)))
        for address in sorted(others):
            standing = others[address].get(partition_id, Standing(*NOTHING))
            if standing > best.standing:
                best = Best(address, standing)
        chosen[partition_id] = best
    return chosen


def readable(others: Mapping[str, Standings], unreadable: Container[tuple[str, PartitionId]]) -> dict[str, Standings]:
    """Returns ``others`` without the copies in ``unreadable``: pairs of an address and a partition_id."""
    return {
        address: {
            partition_id: standing
            for partition_id, standing in told.items()
            if (address, partition_id) not in unreadable
        }
        for address, told in others.items()
    }


def standings_to_json(standings: Standings) -> dict[str, list[list[int]]]:
    """Returns ``{feed id in hex: [[term, seq], ...]}``, with a pair for each partition from 0 on.

    Partitions of other groups count as empty. The reader takes those of its group only.
    """
    value: dict[str, list[list[int]]] = {}
    for partition_id in sorted(standings):
        pairs = value.setdefault(partition_id.feed_id.hex(), [])
        pairs.extend([*NOTHING] for _ in range(len(pairs), partition_id.partition))
        pairs.append(list(standings[partition_id]))
    return value


def standings_from_json(value: Any, what: str) -> dict[PartitionId, Standing]:
    """Returns the reverse of ``standings_to_json``. Raises ProtocolError."""
    standings = {}
    try:
        for text, pairs in value.items():
            feed_id = bytes.fromhex(text)
            if len(feed_id) != FEED_ID_BYTES:
                raise ValueError(f"{text!r:.100} is no id of a feed")
            for number, (term, seq) in enumerate(pairs):
                if not all(type(n) is int and 0 <= n <= SEQ_MAX for n in (term, seq)):
                    raise ValueError(f"{term!r:.100}, {seq!r:.100} are no term and seq")
                standings[PartitionId(feed_id, number)] = Standing(term, seq)
    except (AttributeError, TypeError, ValueError) as error:
        raise ProtocolError(f"{what}: the standings cannot be read: {error}") from None
    return standings
