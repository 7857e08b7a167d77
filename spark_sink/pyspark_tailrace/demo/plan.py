"""The settings of the feed, and of the files and micro-batches of a history."""

from __future__ import annotations

from typing import NamedTuple

from pyspark_tailrace.demo.jsonlines import FILE_BYTES_MAX, FILE_ROWS_MAX
from tailrace.model import LevelName

FEED = "demo"
# Spark waits for this level, and the index reads at it: the disks of two of the three servers.
LEVEL: LevelName = "quorum"
PARTITIONS = 16

# A short history gets small files, so that there are several micro-batches: eight of three files each.
FILES_MIN = 24
FILES_PER_BATCH = 3

# With fewer changes, the server cannot be killed with some of a micro-batch's writes answered and others not.
CHANGES_MIN = 48


class FilePlan(NamedTuple):
    """The bounds of a file in rows and bytes, and the number of files in a micro-batch."""

    file_rows_max: int
    file_bytes_max: int
    files_per_batch: int


def plan_files(changes: int) -> FilePlan:
    """Returns the plan for a number of changes.

    >>> plan_files(240).file_rows_max
    10
    """
    rows = -(-changes // FILES_MIN)
    return FilePlan(min(max(rows, 1), FILE_ROWS_MAX), FILE_BYTES_MAX, FILES_PER_BATCH)
