"""Whose history of each partition a promotion goes on with. Pure.

A standing is (term of the newest branch that has begun at or below its durable seq, that seq). The highest wins, term
first: a long tail of an older term was never acknowledged by a majority. Equal standings are the same history.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

from tailrace.errors import ProtocolError
from tailrace.model import FEED_ID_BYTES
from tailrace.model.failover import SEQ_MAX

NOTHING = (0, 0)


class Place(NamedTuple):
    """A partition of a feed."""

    feed_id: bytes
    partition: int


class Standing(NamedTuple):
    """How far somebody has a partition, durably, at the end of a run."""

    term: int
    seq: int


Standings = Mapping[Place, Standing]


class Best(NamedTuple):
    """Who has most of a partition; ``address`` "": this node itself."""

    address: str
    standing: Standing


def choose(own: Standings, others: Mapping[str, Standings], places: Iterable[Place]) -> dict[Place, Best]:
    """Who has most of each of ``places``. This node wins ties; among others the first address does."""
    chosen = {}
    for place in places:
        best = Best("", own.get(place, Standing(*NOTHING)))
        for address in sorted(others):
            standing = others[address].get(place, Standing(*NOTHING))
            if standing > best.standing:
                best = Best(address, standing)
        chosen[place] = best
    return chosen


def readable(others: Mapping[str, Standings], unreadable: Container[tuple[str, Place]]) -> dict[str, Standings]:
    """Returns ``others`` without the copies in ``unreadable``: pairs of an address and a place."""
    return {
        address: {place: standing for place, standing in told.items() if (address, place) not in unreadable}
        for address, told in others.items()
    }


def standings_to_json(standings: Standings) -> dict[str, list[list[int]]]:
    """``{feed id in hex: [[term, seq], ...]}``, a pair for each partition from 0 on."""
    value: dict[str, list[list[int]]] = {}
    for place in sorted(standings):
        pairs = value.setdefault(place.feed_id.hex(), [])
        assert len(pairs) == place.partition, "all partitions of a feed are told"
        pairs.append(list(standings[place]))
    return value


def standings_from_json(value: Any, what: str) -> dict[Place, Standing]:
    """The reverse of ``standings_to_json``. ProtocolError."""
    standings = {}
    try:
        for text, pairs in value.items():
            feed_id = bytes.fromhex(text)
            if len(feed_id) != FEED_ID_BYTES:
                raise ValueError(f"{text!r:.100} is no id of a feed")
            for number, (term, seq) in enumerate(pairs):
                if not all(type(n) is int and 0 <= n <= SEQ_MAX for n in (term, seq)):
                    raise ValueError(f"{term!r:.100}, {seq!r:.100} are no term and seq")
                standings[Place(feed_id, number)] = Standing(term, seq)
    except (AttributeError, TypeError, ValueError) as error:
        raise ProtocolError(f"{what}: the standings cannot be read: {error}") from None
    return standings
