"""A stream that a replica takes: the same blocks, and what they do not tell of the partition's producers and sinks.

A block carries the producer and the number that it was written with; merged ones, and those of segments, carry none. A
replica that takes such a snapshot would not recognise what is sent again after a change of leaders, so it is told the
table of producers as of the snapshot's end, before the first such block: it may be the leader with what it has by then.

Of which batch blocks were published a block does not tell either, and a replica that had the blocks without the batch
would publish them again, or not at all, once it leads. So what was published is a snapshot of its own, with the last
batches of the partition's sinks before its end, and the replica takes it over in one step. Segments are sent as one run
up to the last of them: below it nobody knows what the last batches were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace.block import Block
from tailrace.wire.bodies import JSON_BODY_BYTES_MAX
from tailrace.wire.frames import FRAME_HEADER_BYTES
from tailrace.wire.replica_messages import Producers
from tailrace.wire.stage_messages import SinksTold
from tailrace_server.manifest import producers_to_json
from tailrace_server.partition.partition import Partition
from tailrace_server.state.last_batches import to_json
from tailrace_server.stream.partition_stream import PartitionStream


class ReplicationStream(PartitionStream):
    """``now()``: monotonic seconds."""

    def __init__(self, *arguments: Any, now: Callable[[], float], **options: Any) -> None:
        """As `PartitionStream`."""
        super().__init__(*arguments, **options)
        self._on_close: Callable[[], None] | None = None
        self._now = now
        # What it holds may have come to it of another one, or in a run.
        self._lacks_producers = self.delivered_seq > 0
        self._told_through = 0  # the table was told as of this seq
        self._knows_sinks = False  # it was told the last batches once

    def only_block(self) -> Block | None:
        """None also where producers or sinks are to be told, as for a block without a producer.

        Another leader may have merged that, or it was published.
        """
        if self._lacks_producers or not self._knows_sinks:
            return None
        block = super().only_block()
        return block if block is not None and block.header.producer_id else None

    def _take_segments(self, least_seq: int) -> None:
        if len(self.partition.sinks):
            least_seq = max(least_seq, self.partition.flushed_seq)
        super()._take_segments(least_seq)

    def _take_blocks(self, visible_seq: int) -> None:
        """As far as nothing was published; or one publish, where that comes first."""
        runs = self.partition.published
        following = next(self.partition.tree.blocks_after(self.snapshot_last), None) if runs else None
        if following is None or self._cursors:
            super()._take_blocks(visible_seq)
            return
        if not runs.has_any_of(following):
            super()._take_blocks(min(visible_seq, self._before_published()))
            return
        self.is_published, self.is_complete = True, False
        for block in self.partition.tree.blocks_after(self.snapshot_last):
            self._blocks.append(block)
            self.snapshot_last = block.seqs[1]
            if runs.around(self.snapshot_last) is None:
                return

    def _before_published(self) -> int:
        """Where the block ends that comes before the next publish."""
        run = self.partition.published.above(self.snapshot_last)
        first = None if run is None else self.partition.tree.find(run.after_seq + 1)
        return self.partition.high_seq if first is None else first.seqs[0] - 1

    def let_go(self) -> None:
        """What a segment has now is sent as a run, also where it was published."""
        self.is_published = self.is_complete = False
        super().let_go()

    def before_block(self, block: Block) -> list[bytes]:
        """PRODUCERS, where ``block`` does not tell of its own, and they were not told as of the snapshot's end."""
        if not block.header.producer_id and not self._is_one_publish and self._told_through < self.snapshot_last:
            self._lacks_producers = True
        return self._encode_producers() if self._lacks_producers else []

    def _encode_producers(self) -> list[bytes]:
        self._lacks_producers = False
        self._told_through = self.snapshot_last
        return encode_producers(self.partition, self.snapshot_last, self._now(), self.id)

    @property
    def _is_one_publish(self) -> bool:
        """The snapshot is what was published at once, by no producer."""
        run = self.partition.published.above(self.snapshot_after) if self.is_published else None
        return run is not None and (run.after_seq, run.last_seq) == (self.snapshot_after, self.snapshot_last)

    def before_end(self) -> list[bytes]:
        """What the replica has to know together with the snapshot that ends now: SINKS, and PRODUCERS.

        SINKS where something of it may have been published, and at the end of the first one; PRODUCERS where they are
        still to be told, since it had no block.
        """
        frames = []
        if not self.is_complete or not self._knows_sinks:
            frames += self._encode_sinks(self.snapshot_last)
        self._knows_sinks = True
        return frames + (self._encode_producers() if self._lacks_producers else [])

    def at_start(self) -> list[bytes]:
        """SINKS, where nothing comes that the replica could be told them with."""
        if self.delivered_seq < self.partition.high_seq:
            return []
        self._knows_sinks = True
        return self._encode_sinks(self.delivered_seq)

    def _encode_sinks(self, seq: int) -> list[bytes]:
        table = self.partition.sinks.as_of(seq)
        return [SinksTold(self.partition.id, seq, to_json(table)).encode(self.id)] if table else []

    def when_closed(self, on_close: Callable[[], None]) -> None:
        """Has ``on_close`` called once, when the stream is over."""
        self._on_close = on_close

    def close(self) -> None:
        """Closes the stream, then calls what `when_closed` was given."""
        super().close()
        on_close, self._on_close = self._on_close, None
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
