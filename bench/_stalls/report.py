"""What the nodes of a bench have told of their turns and counts (``node.py``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple


class Window(NamedTuple):
    """A stretch of monotonic time."""

    begin: float
    end: float

    def __contains__(self, at: object) -> bool:
        assert isinstance(at, float)
        return self.begin <= at < self.end


class Turn(NamedTuple):
    """A turn of a node's loop that was noted: when, its seconds, those of processor time, and its longest step."""

    at: float
    wall: float
    cpu: float
    steps: int
    step_wall: float
    step_cpu: float
    where: str

    def __str__(self) -> str:
        times = (self.wall, self.cpu, self.step_wall, self.step_cpu)
        wall, cpu, step_wall, step_cpu = (f"{seconds * 1e3:,.0f}" for seconds in times)
        total = f"{wall} ms, {cpu} of the processor, in {self.steps} steps"
        return f"{total}, the longest {step_wall}, {step_cpu}: {self.where}"


class Report:
    """A node's file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def counts(self) -> dict[str, Any]:
        """The newest ones; empty where there are none yet."""
        return next((line for line in reversed(self._lines()) if line["kind"] == "counts"), {})

    def counts_in(self, window: Window) -> list[dict[str, Any]]:
        """Those of ``window``, oldest first."""
        return [line for line in self._lines() if line["kind"] == "counts" and line["at"] in window]

    def turns(self, window: Window) -> list[Turn]:
        """The noted turns that have begun in ``window``."""
        return [
            Turn(line["at"], line["wall"], line["cpu"], line["steps"], *line["step"].values())
            for line in self._lines()
            if line["kind"] == "turn" and line["at"] in window
        ]

    def searches(self, window: Window) -> list[float]:
        """The processor seconds of searches for garbage in ``window``, of those that were noted."""
        return [line["cpu"] for line in self._lines() if line["kind"] == "search" and line["at"] in window]

    def _lines(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text().splitlines(keepends=True) if line.endswith("\n")]
