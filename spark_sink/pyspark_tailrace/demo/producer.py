"""Writes a history as files, while Spark reads them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import trio

from pyspark_tailrace.demo.jsonlines import write_json_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark_tailrace.demo.changes import Change
    from pyspark_tailrace.demo.history import History
    from pyspark_tailrace.demo.plan import FilePlan

# Listing a folder takes time. If two files appear meanwhile, Spark may see only the second one and take it first. So
# the interval between two files is longer than a listing of hundreds of files, which takes milliseconds. The reports of
# the micro-batches are still checked for the order.
FILE_INTERVAL_S = 0.05


class Produced(NamedTuple):
    """Counts of files, of the changes and deletions in them, of their bytes, and of the bytes of keys and values."""

    files: int = 0
    changes: int = 0
    deletions: int = 0
    file_bytes: int = 0
    data_bytes: int = 0


class Producer:
    """Writes the history to ``folder``. Any thread may read ``produced`` meanwhile."""

    def __init__(self, history: History, folder: Path, plan: FilePlan) -> None:
        self._history = history
        self._folder = folder
        self._plan = plan
        self._deletions = 0
        self._data_bytes = 0
        self.produced = Produced()
        self.ends: set[int] = set()  # the number of changes up to the end of each file
        self.finished = trio.Event()

    async def run(self) -> None:
        """Writes all changes, in a thread. Raises GitFailed if the repository cannot be read."""
        await trio.to_thread.run_sync(self._write)
        self.finished.set()

    def _write(self) -> None:
        plan = self._plan
        files = write_json_lines(
            self._counted(),
            self._folder,
            file_bytes_max=plan.file_bytes_max,
            file_rows_max=plan.file_rows_max,
        )
        try:
            for file in files:
                trio.from_thread.check_cancelled()
                written = self.produced
                self.ends.add(file.last_order)
                self.produced = Produced(
                    files=written.files + 1,
                    changes=file.last_order,
                    deletions=self._deletions,
                    file_bytes=written.file_bytes + file.nbytes,
                    data_bytes=self._data_bytes,
                )
                time.sleep(FILE_INTERVAL_S)
        finally:
            files.close()  # type: ignore[attr-defined]  # ends git if it still runs

    def _counted(self) -> Iterator[Change]:
        """Yields the changes and counts them; the first change of the next file may be counted already."""
        for change in self._history.changes():
            self._deletions += change.value is None
            self._data_bytes += len(change.key) + len(change.value or b"")
            yield change
