"""The times between which a consumer wants rows. Pure."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.consuming.events import Mutations


class TimeRange(NamedTuple):
    """From ``since_us`` on, and before ``until_us``: microseconds since 1970 UTC. None is no bound."""

    since_us: int | None
    until_us: int | None

    def cut(self, mutations: Mutations, before_seq: int) -> tuple[Mutations | None, int, bool]:
        """Returns the rows that are neither too early nor too late, the seq that they lead to, and whether time is up.

        Time is up with the first row that is too late, since all later rows are too late as well.

        Args:
            mutations: The rows of a block.
            before_seq: The consumer's position before them.
        """
        kept: Mutations | None = mutations
        last_seq, is_past = mutations.last_seq, False
        if self.until_us is not None:
            kept = mutations.stamped_before(self.until_us)
            is_past = kept is not mutations
            if is_past:
                last_seq = before_seq if kept is None else kept.last_seq
        if self.since_us is not None and kept is not None:
            kept = kept.stamped_since(self.since_us)
        return kept, last_seq, is_past
