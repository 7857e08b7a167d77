"""Events of a stream that came together, as few messages. Pure.

Small blocks come by the hundred a second. A message for each of them, and one for the end of each snapshot, would cost
the node and the page more than the rows do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tailrace.consuming.events import Mutations, Rollback, SnapshotEnd
from tailrace.consuming.session import Event
from tailrace.model.json_rows import mutation_to_row
from tailrace_server.serving.tailing.messages import (
    MESSAGE_BYTES_MAX,
    MESSAGE_ROWS_MAX,
    encode_mutations,
    encode_rollback,
    encode_rows,
    encode_snapshot_end,
)


class Gathering:
    """The rows that wait for a message: at most as many as one message may have.

    The rows of a partition that wait share a message, in their order. Of the ends of its snapshots that come meanwhile
    the last one is told.
    """

    def __init__(self, unfinished: Iterable[int] = ()) -> None:
        """``unfinished``: the partitions of which rows were sent since their last ``snapshot_end``."""
        self._rows: dict[int, list[dict[str, Any]]] = {}
        self._ends: dict[int, SnapshotEnd] = {}
        self._count = self._bytes = 0
        self._unfinished = set(unfinished)

    @property
    def unfinished(self) -> frozenset[int]:
        """The partitions of which rows were taken since the last end of a snapshot."""
        return frozenset(self._unfinished)

    def add(self, event: Event, above: int = 0) -> Iterator[str]:
        """Adds an event. Yields the messages that are full, which come before all that is added later.

        ``above``: rows and ends of snapshots up to this seq are left out.
        """
        match event:
            case Mutations(refetched=True):
                yield from self.take()
                self._unfinished.add(event.partition)
                yield from encode_mutations(event)
            case Mutations() if event.last_seq > above:
                yield from self._add_rows(event, above)
            case SnapshotEnd() if event.last_seq > above and event.partition in self._unfinished:
                self._unfinished.discard(event.partition)
                self._ends[event.partition] = event
            case Rollback():
                yield from self.take()
                yield encode_rollback(event)

    def _add_rows(self, event: Mutations, above: int) -> Iterator[str]:
        partition = event.partition
        self._ends.pop(partition, None)  # a later one follows these rows
        self._unfinished.add(partition)
        for mutation in event.one_by_one():  # a block may have a megabyte, and its page may read slowly
            if mutation.seq <= above:
                continue
            size = len(mutation.key) + len(mutation.value or b"")
            if self._count == MESSAGE_ROWS_MAX or (self._count and self._bytes + size > MESSAGE_BYTES_MAX):
                yield from self.take()
            self._rows.setdefault(partition, []).append(mutation_to_row(mutation))
            self._count += 1
            self._bytes += size

    def take(self) -> Iterator[str]:
        """Yields all that waits."""
        rows, ends = self._rows, self._ends
        self._rows, self._ends, self._count, self._bytes = {}, {}, 0, 0
        for partition, of_partition in rows.items():
            yield encode_rows(partition, of_partition)
            if partition in ends:
                yield encode_snapshot_end(ends.pop(partition))
        for end in ends.values():
            yield encode_snapshot_end(end)
