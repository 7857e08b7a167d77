"""Conditional writes: whether what a write asks for is so, at the moment at which it is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import VersionConflict, VersionLost
from tailrace.wire.messages import WriteFlag

if TYPE_CHECKING:
    from tailrace.block import Block
    from tailrace.model import Version
    from tailrace_server.partition import Partition
    from tailrace_server.segment import Read

CONDITIONS = WriteFlag.IF_ABSENT | WriteFlag.IF_VERSION | WriteFlag.IF_PRESENT


def holds(partition: Partition, block: Block, flags: int, if_version: Version | None, read: Read) -> bool:
    """Whether the condition in ``flags`` holds for the row of ``block``; False only where it need not be written.

    That is "delete if present" of what is not there. Raises VersionConflict and VersionLost where the condition does
    not hold, and what `Partition.find` does: the by-key index has to be level with the tree.
    """
    key = block.open_columns().keys()[0]
    found = partition.find(key, read=read)
    present = found is not None and found.value is not None
    if flags & WriteFlag.IF_PRESENT:
        return present
    if if_version is not None and partition.log.has_ended_below(if_version.branch, if_version.seq):
        raise VersionLost(f"{if_version} is of a branch that has ended below it: read the key again")
    current = partition.version_of(found.seq) if found is not None and present else None
    if flags & WriteFlag.IF_ABSENT and present:
        raise VersionConflict(f"key {key!r} is there already, as {current}", current=current)
    if flags & WriteFlag.IF_VERSION and current != if_version:
        raise VersionConflict(f"key {key!r} is not at {if_version} but at {current}", current=current)
    return True
