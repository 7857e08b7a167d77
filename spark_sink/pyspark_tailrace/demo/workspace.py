"""The working folder of a run: the files for Spark, the servers' data, the index, the logs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pyspark_tailrace.demo.failure import DemoFailed
from pyspark_tailrace.demo.servers import COUNT

if TYPE_CHECKING:
    from collections.abc import Iterator

MARKER = "MADE-BY-TAILRACE-DEMO"
MARKER_TEXT = "All files in this folder were made by `tailrace demo`, and are replaced by its next run here.\n"
SERVER = "server-"
LOCK_OF_SERVER = "LOCK"  # a running node holds a lock on this file of its data directory


class Workspace:
    """The paths of a run's files. ``kept``: the folder is kept after the run."""

    def __init__(self, root: Path, *, kept: bool) -> None:
        self.root = root
        self.kept = kept
        self.changes = root / "changes"
        self.server_data = [root / f"{SERVER}{number}" for number in range(1, COUNT + 1)]
        self.index = root / "index.db"
        self.checkpoint = root / "checkpoint"
        self.spark = root / "spark"
        self.server_logs = [data.with_suffix(".log") for data in self.server_data]
        self.spark_log = root / "spark.log"

    @property
    def server_bytes(self) -> int:
        """The size of all servers' files in bytes. While a server runs, it has allocated some room ahead."""
        files = (path for data in self.server_data for path in data.rglob("*"))
        return sum(path.stat().st_size for path in files if path.is_file())


@contextlib.contextmanager
def open_workspace(data: Path | None, *, keep: bool) -> Iterator[Workspace]:
    """Yields an empty folder: ``data``, which is kept, or a temporary one, which is kept with ``keep``.

    Files of an earlier run in ``data`` are removed. If the body raises, the folder is kept for its logs, but not if it
    is interrupted. Raises DemoFailed if ``data`` has other files, or is in use.
    """
    root = Path(tempfile.mkdtemp(prefix="tailrace-demo-")) if data is None else data.absolute()
    workspace = Workspace(root, kept=keep or data is not None)
    try:
        with _claimed(root):
            try:
                yield workspace
            except Exception as error:
                # The logs tell more about any error.
                workspace.kept = True
                error.add_note(f"the logs are in {root}")
                raise
    finally:
        if not workspace.kept:
            shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def _claimed(root: Path) -> Iterator[None]:
    """Locks the folder for this process, and empties it except for its marker."""
    root.mkdir(parents=True, exist_ok=True)
    marker = root / MARKER
    if not marker.exists() and any(root.iterdir()):
        raise DemoFailed(f"{root} is not empty, and not from an earlier run: give a new folder")
    with marker.open("a") as file:
        if not _lock(file):
            raise DemoFailed(f"another run uses {root}: wait for its end, or give another folder")
        _clear(root)
        file.truncate(0)
        file.write(MARKER_TEXT)
        file.flush()
        yield


def _clear(root: Path) -> None:
    for lock in root.glob(f"{SERVER}*/{LOCK_OF_SERVER}"):
        with lock.open("a") as file:
            if not _lock(file):
                raise DemoFailed(f"a server still runs on {lock.parent}: stop it, or give another folder")
    for entry in os.scandir(root):
        if entry.name == MARKER:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
