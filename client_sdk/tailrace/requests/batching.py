"""The bounds of a writer or a stage. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tailrace.block import Block
from tailrace.requests.outbox import Outbox, Settle


class Batching(NamedTuple):
    """The bytes and rows at which a batch is sent, and the bytes without an answer at which calls wait."""

    batch_bytes: int
    batch_rows: int
    in_flight_bytes: int

    def outbox(
        self,
        partitions: int,
        send: Callable[[Block, Settle], None],
        kick: Callable[[], None],
        on_change: Callable[[], None],
    ) -> Outbox:
        """Returns an outbox with these bounds; the other arguments are those of `Outbox`."""
        return Outbox(
            partitions,
            batch_bytes=self.batch_bytes,
            batch_rows=self.batch_rows,
            bytes_max=self.in_flight_bytes,
            send=send,
            kick=kick,
            on_change=on_change,
        )
