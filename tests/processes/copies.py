"""Copies of a feed: all rows and failover logs that a node shows, read by a client and compared with another copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace import Mutations

from .history import Row
from .violation import Violation

if TYPE_CHECKING:
    import tailrace
    from tailrace.model.failover import FailoverLog


class Copy(NamedTuple):
    """All rows of a feed with their branches, and its failover logs, by partition."""

    rows: dict[int, list[Row]]
    branches: dict[int, list[bytes]]
    logs: dict[int, FailoverLog]

    @property
    def count(self) -> int:
        """Returns how many rows there are."""
        return sum(map(len, self.rows.values()))


async def read_copy(name: str, feed: tailrace.Feed, partitions: int) -> Copy:
    """Reads all durable rows of a feed. Raises Violation if one is missing."""
    found = Copy({partition: [] for partition in range(partitions)}, {p: [] for p in range(partitions)}, {})
    async with feed.consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, Mutations):
                rows = found.rows[event.partition]
                for mutation in event:
                    if mutation.seq != len(rows) + 1:
                        raise Violation(f"{name}: {mutation.seq} of {event.partition} after {len(rows)}")
                    rows.append(Row(mutation.key, mutation.value, mutation.timestamp))
                    found.branches[event.partition].append(event.branch)
        for partition, position in stream.latest_positions.items():
            found.logs[partition] = position.log
    return found


def compare(name: str, copy: Copy, other: str, expected: Copy) -> None:
    """Raises Violation if the logs or the rows of two copies differ."""
    if copy.logs != expected.logs:
        raise Violation(f"the failover logs differ: {name} has {copy.logs}, {other} has {expected.logs}")
    compare_rows(name, copy.rows, other, expected.rows)


def compare_rows(name: str, found: dict[int, list[Row]], other: str, expected: dict[int, list[Row]]) -> None:
    """Raises Violation if the rows of two copies differ."""
    for partition, rows in expected.items():
        own = found.get(partition, [])
        if own != rows:
            seq = next((s for s, (a, b) in enumerate(zip(own, rows, strict=False), 1) if a != b), None)
            raise Violation(
                f"partition {partition}: {name} has {len(own)} rows, {other} has {len(rows)}; the first that differs "
                f"is {seq}"
            )
