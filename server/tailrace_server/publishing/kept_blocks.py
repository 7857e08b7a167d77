"""The blocks of stages that are still in memory: a publish need not read and verify what was just written. Pure.

Only stages that began in this run, all of whose blocks are here. Where there is no more room the stage that began first
is let go of, as one is that was not published soon: both are read from their files then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tailrace.block import Block
from tailrace_server.publishing.stage_file import StagedBlock

# The driver of a job publishes when the last of its tasks has ended.
KEPT_S_MAX = 60.0


class KeptShare(NamedTuple):
    """What a stage has of one partition, in its order."""

    entries: list[StagedBlock]
    blocks: list[Block]


class _Stage:
    """A stage that is kept."""

    __slots__ = ("nbytes", "shares", "used_at")

    def __init__(self, now: float) -> None:
        self.shares: dict[int, KeptShare] = {}
        self.nbytes = 0
        self.used_at = now


class KeptBlocks:
    """At most ``bytes_max`` bytes of blocks, by stage."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._stages: dict[bytes, _Stage] = {}  # the one that began first at the front
        self.nbytes = 0

    def begin(self, id: bytes, now: float) -> None:
        """A stage has begun; ``now`` are monotonic seconds."""
        self._stages[id] = _Stage(now)

    def add(self, id: bytes, entry: StagedBlock, block: Block, now: float) -> None:
        """The next block of a stage."""
        stage = self._stages.get(id)
        if stage is None:
            return
        share = stage.shares.setdefault(entry.partition, KeptShare([], []))
        share.entries.append(entry)
        share.blocks.append(block)
        stage.used_at = now
        stage.nbytes += entry.nbytes
        self.nbytes += entry.nbytes
        while self.nbytes > self._bytes_max:
            self.forget((next(iter(self._stages)),))

    def find(self, id: bytes) -> dict[int, KeptShare] | None:
        """What a stage has of each partition; None where it has to be read."""
        stage = self._stages.get(id)
        return None if stage is None else stage.shares

    def forget(self, ids: Iterable[bytes]) -> None:
        """These stages are published, gone, or to be read."""
        for id in ids:
            stage = self._stages.pop(id, None)
            if stage is not None:
                self.nbytes -= stage.nbytes

    def expire(self, now: float) -> None:
        """Lets go of what was not published soon."""
        self.forget([id for id, stage in self._stages.items() if now - stage.used_at >= KEPT_S_MAX])
