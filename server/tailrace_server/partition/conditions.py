"""Conditional writes: checks the condition of a write at the moment of its append."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import VersionConflict, VersionLost
from tailrace.wire.messages import WriteFlag

if TYPE_CHECKING:
    from tailrace.model import Version
    from tailrace.model.failover import FailoverLog

CONDITIONS = WriteFlag.IF_ABSENT | WriteFlag.IF_VERSION | WriteFlag.IF_PRESENT


def holds(key: bytes, current: Version | None, log: FailoverLog, flags: int, if_version: Version | None) -> bool:
    """Returns whether the condition in ``flags`` holds for a row of ``key``; False only if the row need not be written.

    That is "delete if present" of a key that is not there. Raises VersionConflict and VersionLost if the condition does
    not hold.

    Args:
        key: the key of the row.
        current: the version of the key in the partition; None if it is not there.
        log: the failover log of the partition.
        flags: of the WRITE.
        if_version: the version that the writer expects, for IF_VERSION.
    """
    if flags & WriteFlag.IF_PRESENT:
        return current is not None
    if if_version is not None and log.has_ended_below(if_version.branch, if_version.seq):
        raise VersionLost(f"{if_version} is of a branch that has ended below it: read the key again")
    if flags & WriteFlag.IF_ABSENT and current is not None:
        raise VersionConflict(f"key {key!r} is there already, as {current}", current=current)
    if flags & WriteFlag.IF_VERSION and current != if_version:
        raise VersionConflict(f"key {key!r} is not at {if_version} but at {current}", current=current)
    return True
