"""Ways to a wrong state that others have gone, step by step, each with every kind of index."""

import pytest
from tests.crashing_indexes import AtomicIndex, RinglessIndex, RowByRowIndex, TruncatingIndex
from tests.tailrace.consuming.rollback_model import World

K, X, NEW_K, NO_K = (
    ("write", b"k", False),
    ("write", b"x", False),
    ("write", b"k", False),
    ("write", b"k", True),
)
CONSUME = ("consume", 0, None, None)


def consume(events=None, dies_before=None, node=0):
    return "consume", node, events, dies_before


SCENARIOS = {
    # 1: k was overwritten above the fork, and its older value lies below: dropping what is above loses k.
    "1: an older value does not come again": [K, X, ("replicate", 1), NEW_K, CONSUME, ("fail_over", 1), X],
    "1: a deletion above the fork": [K, X, ("replicate", 1), NO_K, CONSUME, ("fail_over", 1), X],
    "1: out of a folded segment": [K, X, ("replicate", 1), NEW_K, ("compact", 0, 3), CONSUME, ("fail_over", 1), X],
    # 2a: rows of a new history under the old log; then the old leader comes back.
    "2a: the log is stored with the first rows": [
        *[K, X, ("replicate", 2), CONSUME, ("replicate", 1), ("crash", 2), NEW_K, NEW_K],
        *[consume(3), ("restart",), consume(node=2), consume(node=1)],
    ],
    # 2b: what was read again is lost in its turn.
    "2b: refetched documents are no phantoms": [
        *[K, X, NEW_K, CONSUME, ("crash", 1), NEW_K, consume(2), ("crash", 1), X],
    ],
    # 2c: dying half-way through a rollback, and meeting the old leader.
    "2c: a rollback that was begun is finished": [
        *[K, X, ("replicate", 1), NEW_K, X, ("replicate", 2), CONSUME, ("fail_over", 1), K, X],
        *[consume(dies_before=3), consume(node=1)],
    ],
    # 2d: rows were applied, and their position was not stored.
    "2d: rows beyond the position": [K, CONSUME, X, NEW_K, consume(dies_before=3), ("crash", 2), X],
    # 10: half of a snapshot, whose end is lost.
    "10: half a snapshot is no state": [K, X, NEW_K, ("compact", 0, 0), consume(2), ("crash", 1), X],
    # 12: what was deleted above the fork, and purged, is in no stream and no ring, and lives where histories parted.
    "12: a purged deletion above the fork": [K, ("replicate", 2), NO_K, ("compact", 0, 4), CONSUME, ("fail_over", 2)],
    "12: a purged deletion above where a first fill has come to": [
        *[X, K, ("replicate", 1), NO_K, X, NEW_K, NO_K, ("compact", 0, 4), consume(2), ("fail_over", 1)],
    ],
    # 14: the history changes under a consumer that needs no rollback; its log has to know.
    "14: no rollback, and yet another history": [
        *[K, ("replicate", 2), CONSUME, ("replicate", 1), ("fail_over", 1), X, consume(3)],
        *[("restart",), consume(node=1), consume(node=2)],
    ],
    # 16: nodes that are behind are not rolled back for.
    "16: a node that never heard of the newest branch": [
        *[K, X, ("replicate", 1), NEW_K, CONSUME, ("fail_over", 1), X, CONSUME, consume(node=1), consume(node=2)],
    ],
}


@pytest.mark.parametrize("index", [AtomicIndex, RinglessIndex, RowByRowIndex, TruncatingIndex])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_hazard(scenario, index):
    for seed in range(15):
        World(index, seed).run(SCENARIOS[scenario])
