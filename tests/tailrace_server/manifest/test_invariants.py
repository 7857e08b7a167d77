"""Each thing that has to hold of a manifest, and a manifest of which only that does not hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.tailrace_server.manifest.builders import (
    BRANCH,
    PLACEMENT,
    TIME,
    chain,
    entry,
    id_of,
    manifest_of,
    manifests,
)

from tailrace.model.failover import FailoverLog
from tailrace_server.manifest import invariants
from tailrace_server.manifest.invariants import PLACEMENTS_MAX, SEGMENTS_MAX, SINKS_MAX
from tailrace_server.segment import NO_BASE
from tailrace_server.state.last_batches import LastBatch

ONE, TWO, THREE = chain(10, 20, 30)


def of(*segments, **changes):
    return manifest_of(segments, **changes)


@pytest.mark.parametrize(
    "manifest",
    [
        manifest_of(),
        of(ONE, TWO, THREE),
        of(ONE, TWO, THREE, purge_seq=30, trim_seq=30),
        of(TWO, THREE),  # the first one was trimmed
        manifest_of(flushed_seq=30, trim_seq=30),  # all were
        of(ONE, TWO._replace(id=id_of(9), included_ids=(id_of(8), id_of(2))), THREE),  # based on one that was folded
        of(ONE._replace(rows=0, oldest_timestamp=0, newest_timestamp=0), TWO),  # all purged
        of(ONE, TWO._replace(oldest_timestamp=ONE.newest_timestamp)),
        of(ONE, log=FailoverLog([(b"n" * 16, 7, 500)])),  # the log goes back to 500 only
        of(ONE, log=FailoverLog([(b"n" * 16, 7, 500), (BRANCH, 1, 0)])),  # the journal holds 11 to 500 and more
    ],
)
def test_all_is_well(manifest):
    assert invariants.problems(manifest) == []
    invariants.check(manifest)


@given(manifests())
def test_of_any_good_manifest_nothing_is_found(manifest):
    assert invariants.problems(manifest) == []


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        (manifest_of(hash_first=2, hash_last=1), "its hashes begin at 0000000000000002 and end at 0000000000000001"),
        (of(ONE, purge_seq=11), "its purge seq, 11, is above its flushed seq, 10"),
        (of(ONE, trim_seq=11), "its trim seq, 11, is above its flushed seq, 10"),
        (of(ONE, log=FailoverLog()), "its failover log is empty"),
        (
            manifest_of(sinks={str(n): LastBatch(1, "a", 0) for n in range(SINKS_MAX + 1)}),
            "it has 1001 sinks, and at most 1000",
        ),
        (
            manifest_of(sinks={"s": LastBatch(1, "a", 1)}),
            "its sink 's' has published up to seq 1, above its flushed seq, 0",
        ),
        (of(entry(1, 0, 10), entry(2, 10, 10, id_of(1))), r"segment .*, \(10, 10\], is empty"),
        (of(ONE, entry(3, 11, 20, id_of(1))), "does not begin at the end of the one before it, 10"),
        (
            of(ONE, entry(3, 9, 20, id_of(1), oldest_timestamp=TIME + 10)),
            "does not begin at the end of the one before it, 10",
        ),
        (of(TWO, THREE, trim_seq=9), "begin above seq 10, and only those up to 9 were trimmed"),
        (manifest_of(flushed_seq=30, trim_seq=29), "begin above seq 30, and only those up to 29 were trimmed"),
        (of(ONE, TWO, flushed_seq=21), "its segments end at 20, and its flushed seq is 21"),
        (of(entry(1, 0, 10, id_of(7))), "is the first one, and is based on"),
        (of(ONE, entry(3, 10, 20, id_of(7))), f"is based on {id_of(7).hex()}, and stands behind {id_of(1).hex()}"),
        (of(ONE, entry(3, 10, 20, NO_BASE)), "is based on 0000"),
        (of(ONE, entry(1, 10, 20, id_of(1))), "that is there twice"),
        (of(ONE, TWO._replace(included_ids=(id_of(1),))), "that is there twice"),
        (of(ONE._replace(id=NO_BASE)), "has an id that is no id"),
        (of(ONE._replace(placements=(PLACEMENT, PLACEMENT))), "names a placement twice"),
        (of(ONE._replace(rows=11)), "has 11 rows, 0 of them tombstones"),
        (of(ONE._replace(tombstones=11)), "has 10 rows, 11 of them tombstones"),
        (of(ONE._replace(branch=b"x" * 16)), "which is not the failover log's for its last seq"),
        (of(ONE, last_timestamp=TIME + 9), "out of order"),
        (of(ONE, TWO._replace(oldest_timestamp=TIME + 9)), "out of order"),
        (of(ONE._replace(oldest_timestamp=TIME + 11)), "out of order"),
    ],
)
def test_what_does_not_hold_is_named(manifest, why):
    with pytest.raises(AssertionError, match=why):
        invariants.check(manifest)
    assert len(invariants.problems(manifest)) == 1


def test_a_chain_is_bounded():
    many = chain(*range(1, SEGMENTS_MAX + 2))
    assert invariants.problems(manifest_of(many)) == ["it has 10001 segments, and at most 10000 can be had"]


def test_bounds():
    assert PLACEMENTS_MAX == 64
