"""What has become of a writer's blocks: bytes and answers that are missing, versions, the first error. Pure."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.errors import TailraceError, WritesLost
from tailrace.model import VersionRange
from tailrace.requests.lane import Done


class WriterOutcome:
    """Counts what is in flight; ``on_change`` is called with each answer."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._written: dict[int, VersionRange] = {}
        self._error: TailraceError | None = None
        self.in_flight_bytes = 0
        self.unanswered = 0

    def expect(self, nbytes: int) -> Done:
        """A block of ``nbytes`` is on its way; what to call with its answer."""
        self.in_flight_bytes += nbytes
        self.unanswered += 1

        def done(versions: VersionRange | None, error: TailraceError | None) -> None:
            self.in_flight_bytes -= nbytes
            self.unanswered -= 1
            if versions is not None:
                before = self._written.get(versions.partition)
                first_seq = versions.first_seq if before is None else before.first_seq
                self._written[versions.partition] = versions._replace(first_seq=first_seq)
            elif self._error is None:
                self._error = error
            self._on_change()

        return done

    def lost(self, ranges: list[VersionRange]) -> None:
        """Acknowledged versions are gone."""
        seqs = ", ".join(f"{r.first_seq} to {r.last_seq} of partition {r.partition}" for r in ranges)
        self._error = WritesLost(
            f"the node has lost writes that it had acknowledged, with their level: seqs {seqs or 'not known any more'}",
            ranges=ranges,
        )
        self._on_change()

    @property
    def settled(self) -> bool:
        """Everything is answered, or something has failed."""
        return not self.unanswered or self._error is not None

    def has_room(self, bytes_max: int) -> bool:
        """Another block may be sent, or something has failed."""
        return self.in_flight_bytes <= bytes_max or self._error is not None

    def check(self) -> None:
        """Raises the first error."""
        if self._error is not None:
            raise self._error

    def take_written(self) -> dict[int, VersionRange]:
        """The versions since the last call: the first and the last one of each partition. Raises the first error."""
        self.check()
        written, self._written = self._written, {}
        return written
