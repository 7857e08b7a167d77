"""Tells how old a timestamp is at least, by the time that the node was up. Pure.

Timestamps come from the wall clock, which an administrator or a broken time server can move by years, and rows that are
dropped for their age are lost for good. So ages are counted on the monotonic clock, over all runs of the node. Time
that the node was down does not count:

    run       began (wall)   up for          cutoff(3 days): go back through the runs until they add up to 3 days,
    1         Mon 08:00      2 d 1 h          and give the wall time there: Wed 06:00 (1 d 23 h up since in run 1,
    2         Thu 12:00      1 d              and run 2)

If the wall clock leaves the monotonic one by more than an hour during a run, or begins a run before the end of the last
one, no age is known: ``cutoff`` returns None, and status says why. Rows with timestamps ahead of the clock are never at
or before a cutoff; ``ahead`` (ahead.py) tells their age. Source: hazard 24 of the design.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tailrace_server.state.ahead import JUMP_US_MAX, Ahead

# Runs that are remembered: a week of a node that restarts every ten minutes.
RUNS_MAX = 1_024


class NodeRun(NamedTuple):
    """A run of the node: the wall clock at its start and the time that it was up, both in microseconds."""

    began_us: int
    up_us: int


class Uptime:
    """The runs of a node. Times are microseconds; ``wall_us`` since 1970 UTC, ``monotonic_us`` since any point."""

    def __init__(self, earlier: Iterable[NodeRun], wall_us: int, monotonic_us: int, ahead: Ahead | None = None) -> None:
        self.ahead = Ahead() if ahead is None else ahead
        self._earlier = list(earlier)[-(RUNS_MAX - 1) :]
        self._began_us, self._began_monotonic_us = wall_us, monotonic_us
        self._wall_us, self._monotonic_us = wall_us, monotonic_us
        self._line_us = wall_us - monotonic_us
        # The most that the wall clock was behind the run's start plus the time since: no row has an earlier timestamp.
        self._lag_us = 0
        self._began_behind = False
        self.suspended = ""
        if self._earlier:
            last = self._earlier[-1]
            behind_us = last.began_us + last.up_us - wall_us
            if behind_us > JUMP_US_MAX:
                self._began_behind = True
                self.suspended = f"the wall clock is {_hours(behind_us)} behind the end of the last run"

    def tick(self, wall_us: int, monotonic_us: int) -> None:
        """Notes the time of both clocks. Call it at least every few minutes."""
        off_us = (wall_us - self._began_us) - (monotonic_us - self._began_monotonic_us)
        if abs(off_us) > JUMP_US_MAX:
            self.suspended = f"the wall clock has jumped by {_hours(off_us)} since the node was started"
            # Rows from now on belong to another run: by this one they would count as old.
            up_us = self._monotonic_us - self._began_monotonic_us
            self._earlier = [*self._earlier, NodeRun(self._began_us + self._lag_us, up_us)][-(RUNS_MAX - 1) :]
            # The clock may have jumped at any time since the last tick; that time belongs to neither run.
            self._began_us, self._began_monotonic_us = wall_us, monotonic_us
            self._lag_us = self._monotonic_us - monotonic_us
        else:
            self._lag_us = min(self._lag_us, off_us)
        self._wall_us, self._monotonic_us = wall_us, monotonic_us

    @property
    def now_us(self) -> int:
        """The monotonic clock at the last tick."""
        return self._monotonic_us

    @property
    def is_behind(self) -> bool:
        """Whether the wall clock is known to be behind an earlier reading of it plus the time since."""
        return self._began_behind or self._wall_us - self._monotonic_us < self._line_us - JUMP_US_MAX

    @property
    def runs(self) -> list[NodeRun]:
        """All runs, including this one up to now, to be stored for the next start."""
        up_us = self._monotonic_us - self._began_monotonic_us
        return [*self._earlier, NodeRun(self._began_us + self._lag_us, up_us)]

    def cutoff(self, age_us: int) -> int | None:
        """Returns the latest timestamp that is at least ``age_us`` old; None if no row is, or if that is not known."""
        if self.suspended:
            return None
        # If the clock was set back, a later run has given earlier timestamps, which are not older than that run.
        bound_us = self._wall_us
        for run in reversed(self.runs):
            if run.up_us >= age_us:
                return min(run.began_us + run.up_us - age_us, bound_us)
            age_us -= run.up_us
            bound_us = min(bound_us, run.began_us - 1)
        return None


def _hours(us: int) -> str:
    return f"{us / 3_600_000_000:.1f} h"
