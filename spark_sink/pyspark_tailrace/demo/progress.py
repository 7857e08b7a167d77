"""Shows the progress of a run on a terminal: the changes in files, in the feed and in the index."""

from __future__ import annotations

import os
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

STAGES = ("in files", "written", "in the index")


class ProgressBars:
    """A context manager that shows progress bars. Without a terminal it writes nothing.

    It writes to a copy of stderr, because stderr itself is redirected while Spark runs.
    """

    def __init__(self) -> None:
        self._file = open(os.dup(2), "w")  # noqa: SIM115 - closed by __exit__
        console = Console(file=self._file)
        self._progress = Progress(
            TextColumn("{task.description:>12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._doing = self._progress.add_task("starting", total=None)
        self._stages = [self._progress.add_task(stage, total=None, visible=False) for stage in STAGES]

    def __enter__(self) -> ProgressBars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()
        self._file.close()

    def begin(self, total: int) -> None:
        """Shows a bar of ``total`` changes for each stage."""
        self._progress.update(self._doing, visible=False)
        for stage in self._stages:
            self._progress.update(stage, total=total, visible=True)

    def show(self, *counts: int) -> None:
        """Updates the number of changes that have reached each stage."""
        for stage, count in zip(self._stages, counts, strict=True):
            self._progress.update(stage, completed=count)
