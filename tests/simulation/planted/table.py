"""All planted bugs, by name. `tests/README.md` has the rule that each of them breaks."""

from __future__ import annotations

from . import (
    copies,
    deaths,
    failing_partitions,
    failovers,
    groups,
    leadership,
    majorities,
    promotion,
    publishing,
    pulls,
    pushes,
    runs,
    stages,
    streams,
)

BUGS = {
    **leadership.BUGS,
    **promotion.BUGS,
    **failing_partitions.BUGS,
    **failovers.BUGS,
    **majorities.BUGS,
    **runs.BUGS,
    **publishing.BUGS,
    **stages.BUGS,
    **streams.BUGS,
    **copies.BUGS,
    **pulls.BUGS,
    **pushes.BUGS,
    **deaths.BUGS,
    **groups.BUGS,
}
