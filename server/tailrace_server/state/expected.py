"""Producers and last batches that a leader sends ahead of the published batch they go with. Pure."""

from __future__ import annotations

from typing import NamedTuple

from tailrace_server.state.last_batches import LastBatch
from tailrace_server.state.producers import ProducerTable


class Expected(NamedTuple):
    """Producers and last batches, each with the seq as of which the leader has them; None if it sent none."""

    producers: tuple[int, ProducerTable] | None = None
    sinks: tuple[int, dict[str, LastBatch]] | None = None

    def producers_at(self, seq: int) -> ProducerTable | None:
        """Returns the producers as of ``seq``; None if the leader sent no table as of it."""
        return self.producers[1] if self.producers is not None and self.producers[0] == seq else None

    def sinks_at(self, seq: int) -> dict[str, LastBatch]:
        """Returns the last batches as of ``seq``; an empty table if the leader sent no table as of it."""
        return self.sinks[1] if self.sinks is not None and self.sinks[0] == seq else {}
