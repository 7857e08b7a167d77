"""Collects the versions of a writer's blocks, and reports versions that the node has lost. Pure."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.errors import TailraceError, WritesLost
from tailrace.model import VersionRange
from tailrace.requests.lane import Done


class WriterOutcome:
    """Collects the answers to a writer's blocks."""

    def __init__(self) -> None:
        self._written: dict[int, VersionRange] = {}

    def record(self, settle: Callable[[TailraceError | None], None]) -> Done:
        """Returns the callback for a block's answer: it keeps the versions, then calls ``settle``."""

        def done(versions: VersionRange | None, error: TailraceError | None) -> None:
            if versions is not None:
                before = self._written.get(versions.partition)
                first_seq = versions.first_seq if before is None else before.first_seq
                self._written[versions.partition] = versions._replace(first_seq=first_seq)
            settle(error)

        return done

    @property
    def written(self) -> dict[int, VersionRange]:
        """The versions since the last call of ``take_written``."""
        return self._written.copy()

    def take_written(self) -> dict[int, VersionRange]:
        """Returns the versions since the last call: the first and the last one of each partition."""
        written, self._written = self._written, {}
        return written


def writes_lost(ranges: list[VersionRange]) -> WritesLost:
    """Returns the error for acknowledged versions that are gone."""
    seqs = ", ".join(f"{r.first_seq} to {r.last_seq} of partition {r.partition}" for r in ranges)
    return WritesLost(
        f"the node has lost writes that it had acknowledged, with their level: seqs {seqs or 'not known any more'}",
        ranges=ranges,
    )
