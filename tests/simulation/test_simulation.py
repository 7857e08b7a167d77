"""Every promise holds through all faults, and faults that are hard together have met.

`make simulate SECONDS=...` runs more seeds, and `make simulate SETS=1 SECONDS=...` more seeds of sets.
"""

from unittest import mock

import pytest

from tailrace.link import placing

from .crosses import ALL, RARE
from .plan import plan_run
from .report import Report
from .suite import COPIES, COPIES_OF_SETS, GROUPS, ONE_NODE, ROLLBACKS, SEGMENTS, SETS, run_the_others
from .world import simulate

pytestmark = pytest.mark.slow

# Operations of sinks that come by chance.
OF_SINKS = ("batch published again", "batch of another checkpoint refused", "stage that is not published")

# What happens to copies.
OF_COPIES = (
    "fetch during a compaction",
    "fetch through the death of a node",
    "fetch through damage",
    "fetch of a rollback",
    "fetch: BadSegment",
    "fetch: OSError",
    "fetch: the node is behind",
)

# What happens to segments between nodes.
OF_SEGMENTS = (
    "compaction within a transfer",
    "declined as exists",
    "declined as invalid",
    "declined as overloaded",
    "equal segments",
    "frame SEGMENT_ACK",
    "frame SEGMENT_RELEASE",
    "handover",
    "mode segment",
)


def run(suite, count):
    """Returns the sum of the first seeds' reports. A seed that fails names itself."""
    report = Report()
    for seed in suite.seeds[:count]:
        report.add(simulate(seed, nodes=suite.nodes, copies=suite.copies, way=suite.way, groups=suite.groups))
    print(report)
    return report


@pytest.mark.parametrize("suite", [ONE_NODE, SETS], ids=["one node", "sets"])
def test_consumers_whose_frames_are_received_to_buffers_keep_every_promise(suite):
    """Nearly each frame is a large one, and has its bytes in a buffer that is used again."""
    small = {
        "PLACED_BYTES_MIN": 16,
        "READ_BYTES_MIN": 200,
        "READ_BYTES_MAX": 400,
        "ROOM_BYTES_MIN": 20,
        "STEP_BYTES": 1,
    }
    with mock.patch.multiple(placing, **small):
        report = run(suite, suite.quick)
    assert report.operations["barrier"]


@pytest.mark.long
def test_some_seeds_of_one_node_keep_every_promise():
    report = run(ONE_NODE, ONE_NODE.quick)
    assert report.operations["barrier"] > 10 * ONE_NODE.quick
    assert report.operations["batch published"] > ONE_NODE.quick
    assert report.lost_rows, "nothing was lost with level memory: power cuts come too late"


def test_some_seeds_of_sets_keep_every_promise():
    report = run(SETS, SETS.quick)
    done = report.operations
    assert done["register checked"] >= SETS.quick
    assert done["barrier"] > 2 * SETS.quick
    assert done["promotion"]
    assert done["a node leads"] > SETS.quick
    assert done["state of a follower"]
    assert done["batch published"]
    assert not report.undecided


def test_some_seeds_with_copies_keep_every_promise():
    report = run(COPIES, COPIES.quick)
    done, faults = report.operations, report.faults
    assert done["last fetch"] == 2 * COPIES.quick
    assert done["fetch of something new"] > 3 * COPIES.quick
    assert done["fetch during a compaction"] > COPIES.quick
    assert done["stream behind a copy"]
    assert done["fetch: cancelled"]
    assert done["fetch: OSError"]
    assert faults["fetch killed at a call of its disk"]


@pytest.mark.long
def test_some_seeds_of_sets_with_copies_keep_every_promise():
    report = run(COPIES_OF_SETS, COPIES_OF_SETS.quick)
    done = report.operations
    assert done["last fetch"] == 2 * COPIES_OF_SETS.quick
    assert done["fetch of something new"] > 2 * COPIES_OF_SETS.quick
    assert done["promotion"]


def test_some_seeds_in_which_segments_pass_between_nodes_keep_every_promise():
    report = run(SEGMENTS, SEGMENTS.quick)
    assert report.operations["frame SEGMENT_ACK"]
    assert report.operations["frame SEGMENT_RELEASE"]
    assert report.operations["equal segments"]


@pytest.mark.long
def test_some_seeds_in_which_a_group_shares_the_feed():
    report = run(GROUPS, GROUPS.quick)
    done = report.operations
    assert done["group has read all"] == GROUPS.quick
    assert done["partition assigned"] > 2 * GROUPS.quick
    assert done["commit of a group"] > 2 * GROUPS.quick


@pytest.mark.soak
def test_many_seeds_in_which_a_group_meets_each_fault():
    done = run(GROUPS, 20).operations
    assert all(done[each] for each in ("member leaves", "member is stopped", "partition lost", "partition revoked"))


@pytest.mark.planted
def test_some_seeds_in_which_members_come_and_go():
    """Runs a few seeds with spare nodes until members were added and removed in them."""
    report = Report()
    seeds = [seed for seed in SETS.seeds if plan_run(seed, SETS.nodes).spares]
    for seed in seeds[:12]:
        report.add(simulate(seed, nodes=SETS.nodes))
        if report.operations["member: add done"] > 2 and report.operations["member: remove done"] > 1:
            return
    pytest.fail(f"members did not come and go: {report.operations}")


@pytest.mark.soak
def test_many_seeds_in_which_segments_pass_between_nodes_meet_each_fault():
    report = run(SEGMENTS, 40)
    missing = [operation for operation in OF_SEGMENTS if not report.operations[operation]]
    assert not missing
    assert all(report.faults[f"transfer: {kind}"] for kind in ("flip", "cut", "end", "file of another segment"))
    deaths = {name for name in report.faults if name.endswith("a step of a transfer")}
    assert len(deaths) == 12, deaths


@pytest.mark.soak
def test_many_seeds_with_copies_meet_each_fault():
    """Runs forty seeds of each kind, since each change of the program makes another run of a seed."""
    report = run(COPIES, 40)
    report.add(run(COPIES_OF_SETS, 40))
    missing = [operation for operation in OF_COPIES if not report.operations[operation]]
    assert not missing
    assert all(report.faults[f"transfer: {kind}"] for kind in ("flip", "truncate", "shorten"))


@pytest.mark.planted
def test_some_more_seeds_cover_each_cross():
    """Runs ten seeds, and more until everything was met: each change of the program makes another run of a seed.

    One batch in ten comes from a new checkpoint, and half of the runs have a sink, with about three batches: of ten
    seeds often none meets a batch that another checkpoint has published.
    """
    report = run(ONE_NODE, 10)
    for seed in ONE_NODE.seeds[10:30]:
        if not not_met(report):
            break
        report.add(simulate(seed))
    assert not not_met(report)


def not_met(report):
    """Returns the crosses and the operations of sinks that no run has met yet."""
    crosses = [cross for cross in ALL if cross not in (*report.crosses, *RARE)]
    return crosses + [operation for operation in OF_SINKS if not report.operations[operation]]


def test_a_seed_of_one_node_keeps_every_promise():
    report = simulate(1)
    assert report.operations["barrier"]
    assert report.operations["batch published"]


def test_a_seed_in_which_rollbacks_meet():
    """Each power cut comes while a program reads again the rows that the last one took."""
    report = simulate(ROLLBACKS)
    assert set(report.crosses) >= set(RARE)


@pytest.mark.soak
@pytest.mark.parametrize(
    "suite",
    [ONE_NODE, SETS, COPIES, COPIES_OF_SETS, SEGMENTS, GROUPS],
    ids=["one node", "sets", "copies", "copies of sets", "segments", "groups"],
)
def test_the_other_seeds_keep_every_promise(suite):
    run_the_others(suite)
