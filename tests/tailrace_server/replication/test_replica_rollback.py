"""Which branches a plain replica gives up: those of later terms than its leader's, and nothing else."""

import pytest

from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace_server.replication.replica_rollback import newer_branches

A, B, C = FailoverEntry(b"a" * 16, 1, 0), FailoverEntry(b"b" * 16, 2, 80), FailoverEntry(b"c" * 16, 3, 95)
LOG = FailoverLog([C, B, A])


@pytest.mark.parametrize(
    ("own", "term", "given_up"),
    [
        (LOG, 4, None),
        (LOG, 3, None),
        (LOG, 2, (95, [B, A])),
        (LOG, 1, (80, [A])),
        (LOG, 0, None),
        (FailoverLog([C, B]), 1, (0, [])),
        (FailoverLog(), 1, None),
    ],
)
def test_what_is_of_later_terms_is_given_up(own, term, given_up):
    assert newer_branches(own, term) == (given_up and (given_up[0], FailoverLog(given_up[1])))
