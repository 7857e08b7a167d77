"""Keeps the blocks of new stages in memory, so that a publish need not read and verify them. Pure.

It keeps stages that began in this run, with all their blocks. If it is full, it forgets the stage that began first; it
also forgets a stage that is not published soon. A publish reads such stages from their files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tailrace.block import Block
from tailrace_server.publishing.stage_file import StagedBlock

# A stage waits until the last task of its job has ended: then the driver publishes.
KEPT_S_MAX = 60.0


class KeptShare(NamedTuple):
    """The blocks of one partition in a stage, in order."""

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
    """Blocks by stage, at most ``bytes_max`` bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._stages: dict[bytes, _Stage] = {}  # the one that began first at the front
        self.nbytes = 0

    def set_bytes_max(self, bytes_max: int) -> None:
        """Changes the bound. Stages above it are forgotten with the next block."""
        self._bytes_max = bytes_max

    def begin(self, id: bytes, now: float) -> None:
        """Begins a stage; ``now`` is monotonic seconds."""
        self._stages[id] = _Stage(now)

    def add(self, id: bytes, entry: StagedBlock, block: Block, now: float) -> None:
        """Adds the next block of a stage."""
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
        """Returns the blocks of a stage by partition; None if they have to be read from its file."""
        stage = self._stages.get(id)
        return None if stage is None else stage.shares

    def forget(self, ids: Iterable[bytes]) -> None:
        """Forgets these stages, which were published or removed."""
        for id in ids:
            stage = self._stages.pop(id, None)
            if stage is not None:
                self.nbytes -= stage.nbytes

    def expire(self, now: float) -> None:
        """Forgets the stages that were not used for ``KEPT_S_MAX``."""
        self.forget([id for id, stage in self._stages.items() if now - stage.used_at >= KEPT_S_MAX])
