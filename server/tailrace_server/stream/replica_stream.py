"""A stream that a replica takes: the same blocks, and what they do not tell of the partition's producers.

A block carries the producer and the number that it was written with; merged ones, and those of segments, carry none. A
replica that takes such a snapshot would not recognise what is sent again after a change of leaders, so it is told the
table of producers just before the snapshot's end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace.block import Block
from tailrace.wire.bodies import JSON_BODY_BYTES_MAX
from tailrace.wire.frames import FRAME_HEADER_BYTES
from tailrace.wire.replica_messages import Producers
from tailrace_server.manifest import producers_to_json
from tailrace_server.partition import Partition
from tailrace_server.stream.partition_stream import PartitionStream


class ReplicaStream(PartitionStream):
    """``now()``: monotonic seconds. ``on_close`` is called once, when the stream is over."""

    def __init__(self, *arguments: Any, now: Callable[[], float], **options: Any) -> None:
        """As `PartitionStream`."""
        super().__init__(*arguments, **options)
        self.on_close: Callable[[], None] | None = None
        self._now = now
        self._lacks_producers = False

    def only_block(self) -> Block | None:
        """None also for a block without a producer, which may be one that another leader has merged."""
        block = super().only_block()
        return block if block is not None and block.header.producer_id else None

    def _passed(self, block: Block) -> Block:
        if not block.header.producer_id:
            self._lacks_producers = True
        return super()._passed(block)

    def before_end(self) -> list[bytes]:
        """PRODUCERS, where the snapshot that ends now had blocks without one."""
        if not self._lacks_producers:
            return []
        self._lacks_producers = False
        return encode_producers(self.partition, self.snapshot_last, self._now(), self.id)

    def close(self) -> None:
        """Also tells whoever serves the replica."""
        super().close()
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close()


def encode_producers(partition: Partition, seq: int, now: float, stream_id: int) -> list[bytes]:
    """The table of ``partition`` as of ``seq``, as a frame; nothing where it is empty.

    Where it is too large for a frame (that takes more than 10,000 writers within an hour), those go that have not
    written for longest, and it says so: of theirs nothing is recognised, and nothing is written twice either.
    """
    value = producers_to_json(partition.producers, seq, now)
    if not value["entries"] and value["evicted_age_s"] is None:
        return []
    data = Producers(partition.id, seq, value).encode(stream_id)
    while len(data) - FRAME_HEADER_BYTES > JSON_BODY_BYTES_MAX:
        entries = value["entries"]
        value = {**value, "entries": entries[len(entries) // 2 :], "evicted_age_s": 0.0}
        data = Producers(partition.id, seq, value).encode(stream_id)
    return [data]
