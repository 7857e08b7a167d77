"""Handles PROGRESS: a consumer tells how far it has come, such as a query of Spark whose tasks read for it.

The node stores nothing. It shows the consumer, with its lag, while the connection is open, and as one that has stopped
afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import UnknownFeed
from tailrace.wire.bodies import encode_json
from tailrace.wire.opcodes import Opcode
from tailrace.wire.progress import Progress
from tailrace_server.stream.told_progress import ToldProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.wire.frames import Frame
    from tailrace_server.serving.connection import Connection


def _on_progress(connection: Connection, frame: Frame) -> None:
    """Takes the place of what the connection has told before: of one feed, so that it stays small."""
    told = Progress.decode(frame.body)
    connection.access.require_feed(told.feed_id)
    feed = connection.node.feeds.find(told.feed_id)
    if feed is None:
        raise UnknownFeed(f"no feed has the id {told.feed_id.hex()}: it was dropped, or belongs to another node")
    missing = [partition for partition in told.seqs if partition >= len(feed.partitions)]
    if missing:
        raise UnknownFeed(f"feed {feed.info.name} has no partition {min(missing)}: it has {len(feed.partitions)}")
    seqs = {feed.partitions[partition]: seq for partition, seq in told.seqs.items()}
    connection.note_progress(ToldProgress(told.feed_id, told.level, seqs))
    connection.answers.add(encode_json(Opcode.RESULT, {}, frame.id))


HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {Opcode.PROGRESS: _on_progress}
