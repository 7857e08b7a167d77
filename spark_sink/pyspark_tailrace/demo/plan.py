"""The feed, and how a history is cut into files and micro-batches."""

from __future__ import annotations

from typing import NamedTuple

from pyspark_tailrace.demo.jsonlines import FILE_BYTES_MAX, FILE_ROWS_MAX

FEED = "demo"
# What Spark waits for, and what the index is shown: what is on the disks of two of the three servers.
LEVEL = "quorum"
PARTITIONS = 16

# Of a short history the files are small, so that there are several micro-batches: eight, at three files each.
FILES_MIN = 24
FILES_PER_BATCH = 3

# With fewer changes, the server cannot be killed with some of a micro-batch's writes answered and others not.
CHANGES_MIN = 48


class FilePlan(NamedTuple):
    """Bounds of a file in rows and bytes, and how many files Spark takes at once."""

    file_rows_max: int
    file_bytes_max: int
    files_per_batch: int


def plan_files(changes: int) -> FilePlan:
    """The plan for so many changes.

    >>> plan_files(240).file_rows_max
    10
    """
    rows = -(-changes // FILES_MIN)
    return FilePlan(min(max(rows, 1), FILE_ROWS_MAX), FILE_BYTES_MAX, FILES_PER_BATCH)
