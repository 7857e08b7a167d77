"""Decides whether a block record of a recovered journal is applied to its partition. Pure.

A rollback record voids every earlier block of its partition above its seq, so rollbacks are gathered first. The
other records are applied in file order; each block is exactly one of these cases, tried from the top:

    VOIDED     a later rollback went below its last seq                                       skip
    FLUSHED    its last seq is at or below the partition's flushed seq: a segment has it      skip
    HELD       a block with the same branch, first seq and body sum has been applied          skip
    NEXT       it begins right above the last seq that is held                                apply
    GAP        anything else                                                                  damage: stop
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class BlockCase(enum.Enum):
    """The case of a block record; the table above."""

    VOIDED = "voided"
    FLUSHED = "flushed"
    HELD = "held"
    NEXT = "next"
    GAP = "gap"


class JournalRollback(NamedTuple):
    """A rollback record of the partition: the lsn of its end, and the seq that the partition went back to."""

    lsn: int
    seq: int


def decide_block(
    *,
    lsn: int,
    first_seq: int,
    last_seq: int,
    rollbacks: Iterable[JournalRollback],
    flushed_seq: int,
    held_seq: int,
    known: bool,
) -> BlockCase:
    """Returns the case of the block record that ends at ``lsn``.

    ``rollbacks`` are all those of its partition, ``flushed_seq`` is the end of its segments, ``held_seq`` the last seq
    that is held now, in segments or applied. ``known`` is True if the same block has been applied.
    """
    if any(rollback.lsn > lsn and rollback.seq < last_seq for rollback in rollbacks):
        return BlockCase.VOIDED
    if last_seq <= flushed_seq:
        return BlockCase.FLUSHED
    if known:
        return BlockCase.HELD
    return BlockCase.NEXT if first_seq == held_seq + 1 else BlockCase.GAP
