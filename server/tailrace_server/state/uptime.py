"""How old a timestamp is, as far as this node can vouch for it: by the time that it was up. Pure.

Timestamps come from the wall clock, which an administrator or a broken time server can move by years; what is dropped
for its age is gone for good. So an age is counted on the monotonic clock, over all runs of the node, and a time that
the node was down does not count:

    run       began (wall)   up for          cutoff(3 days): go back through the runs until they add up to 3 days,
    1         Mon 08:00      2 d 1 h          and give the wall time there: Wed 06:00 (1 d 23 h up since in run 1,
    2         Thu 12:00      1 d              and run 2)

A wall clock that leaves the monotonic one by more than an hour during a run, or that begins a run before the end of the
last one, vouches for nothing: ``cutoff`` is None then, and status says why. Rows that are stamped ahead of the clock
are never at or before a cutoff: how old they are ``ahead`` knows (ahead.py). Source: hazard 24 of the design.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tailrace_server.state.ahead import JUMP_US_MAX, Ahead

# Runs that are remembered; a node that restarts every ten minutes still knows a week.
RUNS_MAX = 1_024


class Run(NamedTuple):
    """A time that the node was up: the wall clock at its beginning, and how long, both in microseconds."""

    began_us: int
    up_us: int


class Uptime:
    """The runs of a node. Times are microseconds; ``wall_us`` since 1970 UTC, ``monotonic_us`` since anything."""

    def __init__(self, earlier: Iterable[Run], wall_us: int, monotonic_us: int, ahead: Ahead | None = None) -> None:
        self.ahead = Ahead() if ahead is None else ahead
        self._earlier = list(earlier)[-(RUNS_MAX - 1) :]
        self._began_us, self._began_monotonic_us = wall_us, monotonic_us
        self._wall_us, self._monotonic_us = wall_us, monotonic_us
        self._line_us = wall_us - monotonic_us
        # How far the wall clock was behind the run's beginning and the time since, at worst: no row is stamped earlier.
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
        """Now it is so late; to be called every few minutes at least."""
        off_us = (wall_us - self._began_us) - (monotonic_us - self._began_monotonic_us)
        if abs(off_us) > JUMP_US_MAX:
            self.suspended = f"the wall clock has jumped by {_hours(off_us)} since the node was started"
            # What is stamped from now on is of another run: this one would say of it that it is old.
            up_us = self._monotonic_us - self._began_monotonic_us
            self._earlier = [*self._earlier, Run(self._began_us + self._lag_us, up_us)][-(RUNS_MAX - 1) :]
            # It may have jumped at any time since the last tick, which is of neither run.
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
        """Whether the wall clock is known to show less than what it has shown, and the time since."""
        return self._began_behind or self._wall_us - self._monotonic_us < self._line_us - JUMP_US_MAX

    @property
    def runs(self) -> list[Run]:
        """All runs, with this one as far as it has come: to be stored for the next start."""
        up_us = self._monotonic_us - self._began_monotonic_us
        return [*self._earlier, Run(self._began_us + self._lag_us, up_us)]

    def cutoff(self, age_us: int) -> int | None:
        """The wall time at or before which a timestamp is at least so old; None where nothing is, or nobody knows."""
        if self.suspended:
            return None
        # Where a clock was set back, a later run has given earlier timestamps: these are not older than it.
        bound_us = self._wall_us
        for run in reversed(self.runs):
            if run.up_us >= age_us:
                return min(run.began_us + run.up_us - age_us, bound_us)
            age_us -= run.up_us
            bound_us = min(bound_us, run.began_us - 1)
        return None


def _hours(us: int) -> str:
    return f"{us / 3_600_000_000:.1f} h"
