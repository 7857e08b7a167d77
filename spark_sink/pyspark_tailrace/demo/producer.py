"""The producer of the demonstration: writes a history as files for Spark, while Spark reads them."""

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

# A folder is not listed in one moment. If two files appear while Spark lists it, it may see the second one alone and
# take it first. Between two files there is more time than a listing of hundreds of files takes, milliseconds; that the
# order was kept is checked all the same, by what each micro-batch says of itself.
FILE_INTERVAL_S = 0.05


class Produced(NamedTuple):
    """What has been written: files, the changes in them and their bytes, and the bytes of keys and values."""

    files: int = 0
    changes: int = 0
    deletions: int = 0
    file_bytes: int = 0
    data_bytes: int = 0


class Producer:
    """Writes the history to ``folder``. ``produced`` may be read from any thread while it works."""

    def __init__(self, history: History, folder: Path, plan: FilePlan) -> None:
        self._history = history
        self._folder = folder
        self._plan = plan
        self._deletions = 0
        self._data_bytes = 0
        self.produced = Produced()
        self.ends: set[int] = set()  # of each file, how many changes there are up to its end
        self.finished = trio.Event()

    async def run(self) -> None:
        """Writes all of it, in a thread. Raises GitFailed where the repository cannot be read."""
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
            files.close()  # type: ignore[attr-defined]  # ends git, where it still runs

    def _counted(self) -> Iterator[Change]:
        """The changes; one that was read for the next file may be counted already."""
        for change in self._history.changes():
            self._deletions += change.value is None
            self._data_bytes += len(change.key) + len(change.value or b"")
            yield change
