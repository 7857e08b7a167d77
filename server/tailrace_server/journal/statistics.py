"""Sizes and times of the journal."""

from __future__ import annotations

from typing import NamedTuple


class JournalStatistics(NamedTuple):
    """Sizes of the journal for status.

    ``bytes`` and ``records`` are in ``files`` files, the newest of which is number ``file``. ``syncs`` were done since
    the start. ``replay_seconds`` estimates how long a start takes to read the files (replay_cost.py).
    """

    file: int
    files: int
    bytes: int
    records: int
    replay_seconds: float
    unsynced_bytes: int
    syncs: int
    last_sync_seconds: float
