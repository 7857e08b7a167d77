"""What a consumer asks for, and what that means for one partition: where it begins and ends, and its request. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from tailrace.consuming.partition import ConsumedPartition
from tailrace.consuming.resume import bare_floor, bounds
from tailrace.consuming.ring import RING_ROWS, Ring, RingChange
from tailrace.model import Level
from tailrace.model.arguments import count
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.model.times import to_us
from tailrace.wire.filters import EVERYTHING, StreamFilter
from tailrace.wire.replica_messages import Replica
from tailrace.wire.stream_messages import StreamRequest

_ON_ROLLBACK = ("follow", "stop", "restart")


class Wanted(NamedTuple):
    """What a consumer asks for. ``since``: "beginning", "now" or positions; ``until``: None, "now" or the

    last seq of each partition, of the history that ``until_logs`` tells, as far as it is known. ``since_us``
    (microseconds since 1970 UTC): the stream begins then, and ``since`` is "now"; ``until_us``: it ends then, and
    ``until`` is None. ``ring_rows``: entries kept for each partition; ``rings``: what was stored of them.
    ``by_index``: an index may go back by itself, and `PartitionStreams.settle` says how far it has. ``filter``: what is
    left out of the mutations. ``state``: as of `tailrace.connect`. ``replica``: who asks, if that is a node
    (`tailrace.consuming.replica`). ``feed_id``: of the feed that is meant; another one of its name is refused.
    """

    feed: str
    since: str | Positions = "beginning"
    until: str | Mapping[int, int] | None = None
    partitions: frozenset[int] | None = None
    visibility: Level = Level.DISK
    on_rollback: str = "follow"
    stored: tuple[Positions, ...] = ()  # what was given as positions: has to be of this feed
    ring_rows: int = RING_ROWS
    rings: Mapping[int, RingChange] = MappingProxyType({})
    by_index: bool = False
    filter: StreamFilter = EVERYTHING
    since_us: int | None = None
    until_us: int | None = None
    state: str = "leader"
    replica: Replica | None = None
    until_logs: Mapping[int, FailoverLog] = MappingProxyType({})
    feed_id: bytes | None = None


def checked_wanted(
    feed: str,
    since: str | Positions | datetime,
    until: str | Positions | datetime | None,
    *,
    partitions: Iterable[int] | None,
    level: Level,
    filter: StreamFilter,
    on_rollback: str,
    ring: int,
) -> Wanted:
    """Checks the arguments of `Feed.consume`, and returns what they ask for. Raises ValueError or TypeError."""
    _check_bound("since", since, ("beginning", "now"))
    _check_bound("until", until, (None, "now"))
    if on_rollback not in _ON_ROLLBACK:
        raise ValueError(f"on_rollback is {on_rollback!r}, none of {', '.join(map(repr, _ON_ROLLBACK))}")
    filter.check()
    only = None if partitions is None else frozenset(count("partitions", id) for id in partitions)
    if only is not None and not only:
        raise ValueError("partitions is empty: name one at least, or leave it out for all of them")
    since_us = to_us(since, "since") if isinstance(since, datetime) else None
    until_us = to_us(until, "until") if isinstance(until, datetime) else None
    if since_us is not None and until_us is not None and until_us < since_us:
        raise ValueError(f"until is {until}, which is before since, {since}")
    return Wanted(
        feed,
        "now" if isinstance(since, datetime) else since,
        until.seqs() if isinstance(until, Positions) else None if isinstance(until, datetime) else until,
        only,
        level,
        on_rollback,
        tuple(value for value in (since, until) if isinstance(value, Positions)),
        count("ring", ring),
        filter=filter,
        since_us=since_us,
        until_us=until_us,
        until_logs={id: at.log for id, at in until.items()} if isinstance(until, Positions) else {},
    )


def _check_bound(name: str, value: str | Positions | datetime | None, words: tuple[str | None, ...]) -> None:
    if not isinstance(value, Positions | datetime) and value not in words:
        hint = "; Positions.parse reads a stored string" if isinstance(value, str) else ""
        names = ", ".join(map(repr, words))
        raise ValueError(f"{name} is {value!r}, none of {names}, Positions or an aware datetime{hint}")


def wanted_partition(wanted: Wanted, id: int, high_seq: int, ring_bytes_max: int, now: float) -> ConsumedPartition:
    """A partition that is to be asked for at once, at ``now`` (monotonic seconds).

    ``high_seq`` is how far the node has it; its ring may hold ``ring_bytes_max``.
    """
    end_seq = None
    if wanted.until == "now":
        end_seq = high_seq
    elif wanted.until is not None:
        assert not isinstance(wanted.until, str)
        end_seq = wanted.until.get(id, 0)
    start = _start(wanted, id)
    ring = _ring(wanted, id, start, ring_bytes_max)
    return ConsumedPartition(id, start, ring, end_seq, now, wanted.until_logs.get(id))


def _start(wanted: Wanted, id: int) -> Position | None:
    if isinstance(wanted.since, Positions):
        return wanted.since.get(id, Position.at(FailoverLog(), 0))
    return None if wanted.since == "now" else Position.at(FailoverLog(), 0)


def _ring(wanted: Wanted, id: int, start: Position | None, bytes_max: int) -> Ring:
    stored = wanted.rings.get(id)
    if stored is None:
        return Ring(wanted.ring_rows, bytes_max, 0 if start is None else bare_floor(start))
    ring = Ring(wanted.ring_rows, bytes_max)
    ring.apply(stored)
    return ring


def stream_request(wanted: Wanted, partition: ConsumedPartition, node_state: str, feed_id: bytes) -> StreamRequest:
    """What is asked for a partition as it stands, of a node that is in this state."""
    position = partition.position
    seq, first, last = (0, 0, 0) if position is None else bounds(partition.record)
    since_us = None
    if position is None:
        position, since_us = Position.at(FailoverLog(), 0), wanted.since_us
    return StreamRequest(
        feed_id,
        partition.id,
        position.log,
        seq if partition.position is not None else None,
        first,
        last,
        position.purge_seq,
        partition.end_seq,
        wanted.visibility,
        node_state,
        wanted.filter,
        since_us,
        wanted.until_us,
        wanted.replica,
    )
