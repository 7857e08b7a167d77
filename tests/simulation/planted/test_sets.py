"""Each rule of promotion and quorum matters: without it a promise is broken, in a story of stories.py."""

import re
from pathlib import Path

import pytest
from tests.processes.violation import Violation

from ..set_world import simulate
from ..stories.table import STORIES
from .leadership import BUGS, planted

RULES = Path(__file__).parents[2] / "README.md"
# With so many seeds a story is told at most, so that it need not be found which one shows a bug whenever something
# changes what is left to chance: most of them do.
TRIES = 6
# Where each is found: a story, and the first seed with which that is told.
FOUND_BY = {
    "no fencing": [("two_masters", 0)],
    "the term left out of the comparison": [("dead_tail", 0)],
    "an entry that counts from below its base": [("early_entry", 0)],
    "a majority without the leader, which leads again by itself": [("slow_leader", 0)],
    "a leader that leads again by itself": [("lone_restart", 0)],
    "a promise that is not durable": [("forgotten_promise", 0)],
    "a leader that asks nobody whether it leads": [("stale_leader", 0)],
    "level quorum that shows what a majority has not": [("dead_tail", 0)],
    "a leader that has promised leads on": [("promised_leader", 0)],
    "a follower that has promised follows on": [("two_masters", 0)],
    "a follower that takes writes": [("busy_handover", 0)],
    "a leader that does not look for a later one": [("stale_leader", 0)],
    "a leader that steps down only for one that it reaches": [("lasting_bridge", 0), ("lasting_cuts", 0)],
    "a term that is promised twice": [("two_candidates", 0)],
    "a promotion without a majority": [("lone_candidate", 0)],
    "a promotion that fetches nothing": [("laggard", 0)],
    "a promotion that does not fetch the list of feeds": [("laggard", 0)],
    "a promotion that goes on with the branch of the leader before": [("dead_tail", 0)],
    "a list of feeds that is written at level disk": [("lone_founder", 0)],
    "a handover that keeps the branch in any term": [("dead_branch", 0)],
    "a member without a vote that is heard": [("old_backup", 0)],
    "an older copy of a member's own disk that votes": [("older_copy", 0)],
    "another cluster that is heard, and members without a vote": [("strangers", 0)],
    "a handover without the leader's promise": [("lost_handover", 0)],
    "a handover beside writes, of what has come": [("busy_handover", 0)],
    "acknowledgements of another branch": [("returned_tail", 1)],
    "an acknowledgement before the fsync": [("slow_follower", 0)],
    "an answer at quorum that waits for nobody": [("dead_tail", 0)],
    "a follower that shows at disk what its leader has not": [("eager_follower", 0)],
    "a replaced disk that votes at once": [("replaced_disk", 0)],
    "a feed that is not made yet and counts as dropped": [("late_list", 0)],
    "a debt that is forgotten where nothing is in common": [("forgotten_branches", 0)],
    "a run that is kept as far as it has come": [("half_a_run", 0), ("leader_of_half_a_run", 2)],
    "a rollback into the middle of a run": [("fork_in_a_run", 0)],
    "acknowledgements inside of a run, of what no majority has": [("run_without_an_end", 2)],
    "a partition that fails and ends all that is followed": [("damaged_leader", 0)],
    "a replica that is told that a history was trimmed": [("trimmed_log", 0)],
    "a vote without owing what the leader cannot read": [("damaged_leader", 0)],
    "a promotion of who cannot read a partition": [("damaged_candidate", 0)],
    "folding of what no majority has, and a debt that is forgotten": [("folded_tail", 0)],
}


def test_each_bug_is_found_somewhere_and_is_in_the_table_of_rules():
    assert FOUND_BY.keys() == BUGS.keys()
    table = RULES.read_text().partition("| rule | planted | story |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| (`[^|]+`) \|$", table, re.MULTILINE)
    told = {bug: stories.replace("`", "").split(", ") for bug, stories in rows}
    assert told == {bug: [story for story, _ in where] for bug, where in FOUND_BY.items()}


@pytest.mark.planted
@pytest.mark.slow
@pytest.mark.parametrize(("bug", "story", "seed"), [(bug, *where) for bug in BUGS for where in FOUND_BY.get(bug, ())])
def test_a_planted_bug_is_found(bug, story, seed):
    violation = first_violation(bug, story, range(seed, seed + TRIES))
    assert violation is not None
    assert any(note.startswith("make simulate SETS=1 SEED=") for note in violation.__notes__)


def first_violation(bug, story, seeds):
    """None where no seed shows the bug. What else goes wrong is raised."""
    for seed in seeds:
        try:
            with planted(bug):
                simulate(seed, story=STORIES[story])
        except Violation as violation:
            return violation
    return None
