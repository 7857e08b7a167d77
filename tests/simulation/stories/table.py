"""All stories, by name.

A story is told to a world in place of faults by chance; the programs go on meanwhile. With the rule that it is about
every promise holds, and without that rule one is broken (`tests/simulation/planted`). Each story is the shortest one
that is known for its rule.
"""

from __future__ import annotations

from . import (
    deaths,
    failing_partitions,
    failovers,
    fetches,
    lasting_cuts,
    leaders,
    majorities,
    promotion,
    pulls,
    pushes,
    runs,
    sinks,
    stages,
)

STORIES = {
    story.name: story
    for story in (
        *leaders.STORIES,
        *promotion.STORIES,
        *lasting_cuts.STORIES,
        *failovers.STORIES,
        *failing_partitions.STORIES,
        *majorities.STORIES,
        *runs.STORIES,
        *sinks.STORIES,
        *stages.STORIES,
        *pulls.STORIES,
        *pushes.STORIES,
        *deaths.STORIES,
        *fetches.STORIES,
    )
}
