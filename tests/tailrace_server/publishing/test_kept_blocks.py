"""Blocks of stages that are kept in memory: whose, how many, and how long."""

from __future__ import annotations

from tests.tailrace_server.publishing.blocks import block

from tailrace_server.publishing.kept_blocks import KEPT_S_MAX, KeptBlocks
from tailrace_server.publishing.stage_file import StagedBlock

ONE, TWO, THREE = b"1" * 16, b"2" * 16, b"3" * 16
BLOCK = block()


def add(kept, id, number=0, partition=0, now=0.0):
    entry = StagedBlock(partition, BLOCK.rows, 64 + number * BLOCK.nbytes, BLOCK.nbytes)
    kept.add(id, entry, BLOCK, now)
    return entry


def test_by_partition_and_in_order():
    kept = KeptBlocks(10_000)
    kept.begin(ONE, 0.0)
    entries = [add(kept, ONE, number, partition) for number, partition in enumerate((3, 1, 3))]
    assert kept.find(ONE) == {3: ([entries[0], entries[2]], [BLOCK, BLOCK]), 1: ([entries[1]], [BLOCK])}
    assert kept.find(TWO) is None
    assert kept.nbytes == 3 * BLOCK.nbytes


def test_a_stage_whose_beginning_is_not_here_is_not_kept():
    kept = KeptBlocks(10_000)
    add(kept, ONE, 1)
    assert kept.find(ONE) is None
    assert kept.nbytes == 0


def test_the_one_that_began_first_makes_room():
    kept = KeptBlocks(2 * BLOCK.nbytes)
    for id in (ONE, TWO):
        kept.begin(id, 0.0)
        add(kept, id)
    assert None not in (kept.find(ONE), kept.find(TWO))
    add(kept, TWO, 1)
    assert kept.find(ONE) is None
    assert len(kept.find(TWO)[0].blocks) == 2
    add(kept, ONE, 1)  # what comes behind what was let go of
    assert kept.find(ONE) is None
    add(kept, TWO, 2)
    assert kept.find(TWO) is None  # larger than all that there is room for
    assert kept.nbytes == 0


def test_what_is_not_published_soon_is_let_go_of():
    kept = KeptBlocks(10_000)
    for id, now in ((ONE, 0.0), (TWO, 1.0), (THREE, 2.0)):
        kept.begin(id, 0.0)
        add(kept, id, now=now)
    kept.expire(KEPT_S_MAX - 0.1)
    assert kept.nbytes == 3 * BLOCK.nbytes
    kept.expire(KEPT_S_MAX + 1.0)
    assert [kept.find(id) is None for id in (ONE, TWO, THREE)] == [True, True, False]
    kept.forget([TWO, THREE])
    assert kept.nbytes == 0
