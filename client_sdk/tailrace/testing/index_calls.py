"""Arguments for the calls of an index under test: mutations, checkpoints and rings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tailrace.consuming.ring import RingChunk
from tailrace.indexes import AppliedMutation
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions

if TYPE_CHECKING:
    from collections.abc import Mapping

CLUSTER, FEED = b"c" * 16, b"f" * 16
LOG = FailoverLog([(b"u" * 16, 1, 0)])


def checkpoint_at(seqs: Mapping[int, int | Position], feed: bytes = FEED, cluster: bytes = CLUSTER) -> Checkpoint:
    """Returns a checkpoint of {partition: seq}, or of {partition: Position}."""
    positions = {p: at if isinstance(at, Position) else Position.at(LOG, at) for p, at in seqs.items()}
    return Checkpoint(Positions(cluster, feed, positions))


def mutation(key: bytes, text: str | None, seq: int, partition: int = 0) -> AppliedMutation:
    """Returns a mutation whose value is JSON with a title and a text; text None deletes the key."""
    value = None if text is None else json.dumps({"title": key.decode(), "text": text}).encode()
    return AppliedMutation(partition, key, value, seq, 1_000_000 + seq)


def chunk(*entries: tuple[int, bytes]) -> RingChunk:
    """Returns entries of a ring, which are seqs and keys, as one chunk."""
    return RingChunk.of([seq for seq, _ in entries], [key for _, key in entries])


def ring_of(checkpoint: Checkpoint | None, partition: int = 0) -> tuple[int, list[tuple[int, bytes]]]:
    """Returns the floor and the entries of a ring as an index gives it back."""
    assert checkpoint is not None, "the index has no checkpoint"
    change = checkpoint.rings[partition]
    entries = [entry for part in change.chunks for entry in part.entries() if entry[0] > change.floor_seq]
    return change.floor_seq, sorted(entries)
