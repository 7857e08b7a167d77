"""A stream to a replica: the same blocks, with the tables of the partition's producers and sinks.

A block carries its producer and the producer's number for it. Merged blocks, and blocks of segments, carry none. With
such blocks alone a replica would not recognise the resends after a change of leaders. So PRODUCERS comes before the
first such block: the table of producers as of the snapshot's end. The replica may become the leader right after it.

A block does not name the batch that published it either. A replica that had the blocks without the batch would publish
them again, or not at all, once it leads. So a published batch is a snapshot of its own. The last batches of the
partition's sinks (SINKS) come before its end, and the replica applies it in one step. Segments are sent as one run up
to the last of them: the last batches at a seq below it are not known any more.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

from tailrace.block import Block
from tailrace.model import Level
from tailrace.wire.bodies import JSON_BODY_BYTES_MAX
from tailrace.wire.frames import FRAME_HEADER_BYTES
from tailrace.wire.replica_messages import Producers
from tailrace.wire.stage_messages import SinksTold
from tailrace_server.manifest import producers_to_json
from tailrace_server.partition.partition import Partition
from tailrace_server.state.last_batches import to_json
from tailrace_server.stream.partition_stream import PartitionStream

_MEMORY = Level.MEMORY  # an attribute of an Enum is slow to read


class ReplicationStream(PartitionStream):
    """A stream of which the replica may have a share of the window only (feed_shares.py)."""

    notes_unhandled = False

    def __init__(self, *arguments: Any, now: Callable[[], float], is_credited: bool = False, **options: Any) -> None:
        """Makes a stream; the other arguments are those of `PartitionStream`.

        ``now()``: monotonic seconds. ``is_credited``: the replica credits the stream by itself, besides the connection.
        """
        super().__init__(*arguments, **options)
        self.is_credited = is_credited
        self._on_close: list[Callable[[], None]] = []
        self._now = now
        # The replica may have its rows from another leader, or in a run.
        self._lacks_producers = self.delivered_seq > 0
        self._told_through = 0  # the seq as of which the table was sent last
        self._knows_sinks = False  # the last batches were sent once

    def only_block(self) -> Block | None:
        """Returns the only block as `PartitionStream` does, but None if producers or sinks have to be sent.

        They have to for a block without a producer: another leader may have merged it, or it was published.
        """
        if self._lacks_producers or not self._knows_sinks:
            return None
        block = super().only_block()
        return block if block is not None and block.header.producer_id else None

    def few_blocks(self) -> Sequence[Block]:
        """Returns the blocks that were just written, if nothing has to be sent with them."""
        partition, seq = self.partition, self.delivered_seq
        if self._lacks_producers or not self._knows_sinks or self.end_seq is not None or self.level != _MEMORY:
            return ()
        if self.lacks_ttls:
            return ()
        if seq < max(partition.flushed_seq, partition.purge_seq, 1) or partition.published:
            return ()
        blocks = partition.tree.newest_above(seq)
        for block in blocks:
            if not block.producer_id:
                return ()
        return blocks

    def _take_segments(self, least_seq: int) -> None:
        if len(self.partition.sinks):
            least_seq = max(least_seq, self.partition.flushed_seq)
        super()._take_segments(least_seq)

    def _take_blocks(self, visible_seq: int) -> None:
        """Adds the blocks up to the next publish; or one publish if that comes first."""
        runs = self.partition.published
        following = next(self.partition.tree.blocks_after(self.snapshot_last), None) if runs else None
        if following is None or self._cursors:
            super()._take_blocks(visible_seq)
            return
        if not runs.has_any_of(following):
            super()._take_blocks(min(visible_seq, self._before_published()))
            return
        self.is_published, self.is_complete = True, False
        blocks = self._blocks = collections.deque[Block]()
        for block in self.partition.tree.blocks_after(self.snapshot_last):
            blocks.append(block)
            self.snapshot_last = block.seqs[1]
            if runs.around(self.snapshot_last) is None:
                return

    def _before_published(self) -> int:
        """Returns the last seq of the block before the next publish."""
        run = self.partition.published.above(self.snapshot_last)
        first = None if run is None else self.partition.tree.find(run.after_seq + 1)
        return self.partition.high_seq if first is None else first.seqs[0] - 1

    def let_go(self) -> None:
        """Gives up flushed blocks. Segments are sent as a run, also those that hold publishes."""
        self.is_published = self.is_complete = False
        super().let_go()

    def before_block(self, block: Block) -> list[bytes]:
        """Returns PRODUCERS if ``block`` names no producer and the table was not sent as of the snapshot's end."""
        if not block.header.producer_id and not self._is_one_publish and self._told_through < self.snapshot_last:
            self._lacks_producers = True
        return self._encode_producers() if self._lacks_producers else []

    def _encode_producers(self) -> list[bytes]:
        self._lacks_producers = False
        self._told_through = self.snapshot_last
        return encode_producers(self.partition, self.snapshot_last, self._now(), self.id)

    @property
    def _is_one_publish(self) -> bool:
        """Whether the snapshot is one publish, which has no producer."""
        run = self.partition.published.above(self.snapshot_after) if self.is_published else None
        return run is not None and (run.after_seq, run.last_seq) == (self.snapshot_after, self.snapshot_last)

    def before_end(self) -> list[bytes]:
        """Returns the tables that belong to the snapshot that ends now.

        SINKS if a part of it may have been published, and at the end of the first snapshot. PRODUCERS if the table is
        still due because the snapshot had no block.
        """
        frames = []
        if not self.is_complete or not self._knows_sinks:
            frames += self._encode_sinks(self.snapshot_last)
        self._knows_sinks = True
        return frames + (self._encode_producers() if self._lacks_producers else [])

    def at_start(self) -> list[bytes]:
        """Returns SINKS if the replica has everything, so that no snapshot follows which could bring them."""
        if self.delivered_seq < self.partition.high_seq:
            return []
        self._knows_sinks = True
        return self._encode_sinks(self.delivered_seq)

    def _encode_sinks(self, seq: int) -> list[bytes]:
        table = self.partition.sinks.as_of(seq)
        return [SinksTold(self.partition.id, seq, to_json(table)).encode(self.id)] if table else []

    def when_closed(self, on_close: Callable[[], None]) -> None:
        """Has ``on_close`` called once, when the stream is over."""
        self._on_close.append(on_close)

    def close(self) -> None:
        """Closes the stream, then calls what `when_closed` was given."""
        super().close()
        callbacks, self._on_close = self._on_close, []
        for on_close in callbacks:
            on_close()


class SegmentStream(ReplicationStream):
    """A stream to a replica that gets segments instead of rows, by `serving.segment_offers`.

    It sends no row. It is the place of the partition on the connection: its end, as with other streams, says that the
    history or the role has changed.
    """

    @property
    def has_news(self) -> bool:
        return False


def encode_producers(partition: Partition, seq: int, now: float, stream_id: int) -> list[bytes]:
    """Returns the table of ``partition`` as of ``seq`` in a frame; nothing if it is empty.

    If it is too large for a frame (more than 10,000 writers within an hour), the writers that have been silent for
    longest are left out, and the frame says so. Their resends are not recognised, and are not written twice either.
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
