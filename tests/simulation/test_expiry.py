"""Keys expire in their time, in order, and alike on all nodes, through all faults; and a planted bug is found."""

from __future__ import annotations

from unittest import mock

import pytest
from tests.processes.violation import Violation

from tailrace.block.arrays import take
from tailrace_server.blocks import expiring as due_rows
from tailrace_server.partition import expiring
from tailrace_server.replication import expirer

from .programs.sessions import Sessions
from .world import World, simulate

pytestmark = pytest.mark.slow


class WorldWithSessions(World):
    """A world with one more program."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        sessions = Sessions(self, "sessions")
        self.others = (*self.others, sessions)
        self.programs = (*self.programs, sessions)


def run(seed, nodes):
    return simulate(seed, nodes=nodes, kind=WorldWithSessions)


@pytest.mark.parametrize(("nodes", "seeds"), [(1, (2, 3)), (3, (3, 7))])
def test_keys_expire_through_all_faults(nodes, seeds):
    assert sum(run(seed, nodes).operations["expired key"] for seed in seeds) > 10


def _each_is_the_newest(partition, due, begin, out_of_time):
    """Deletes each key that was due when it was read, also if it has a newer row in the tree."""
    return (take(due, slice(begin, None)), due.rows) if partition.index_keys(out_of_time) else None


def _early(block, first_seq, last_seq, now_us, default_us, rows_max):
    """Counts half of the ttl."""
    return _expiring_rows(block, first_seq, last_seq, now_us + 700_000, default_us, rows_max)


_expiring_rows = due_rows.expiring_rows


BUGS = {
    "a key is deleted that has a newer row": (expirer, "newest_of", _each_is_the_newest),
    "a key expires early": (expiring, "expiring_rows", _early),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug):
    def run_some():
        for seed in (5, 7):
            run(seed, 1)

    with mock.patch.object(*BUGS[bug]), pytest.raises(Violation, match="expired"):
        run_some()
