import pytest
from tests.tailrace_server.stored import TakingPartition

from tailrace.block import encode_block
from tailrace.errors import BadBlock, NoSpace
from tailrace.model import Level, VersionRange
from tailrace.wire.failures import OutOfOrder
from tailrace.wire.messages import WriteFlag
from tailrace_server.partition.writing import write_block

U = b"u" * 16


@pytest.fixture
def made():
    return TakingPartition()


def test_a_block_gets_its_seqs_and_a_place_in_journal_and_tree(made):
    taken = made.take(b"k", b"v")
    assert taken == (VersionRange(0, U, 1, 1), True)
    ((branch, block),) = made.journal.blocks
    assert branch == U
    assert (block.header.first_seq, block.header.timestamp) == (1, 1000)
    assert made.partition.tree.find(1) is block
    assert (made.partition.high_seq, made.partition.durable_seq) == (1, 0)
    made.partition.check()


def test_what_the_journal_does_not_take_leaves_nothing(made):
    made.journal.error = NoSpace("the disk is full")
    with pytest.raises(NoSpace):
        made.take(b"k", b"v")
    made.journal.error = None
    made.refused()
    assert made.partition.high_seq == 0
    assert made.take(b"k", b"v").versions.first_seq == 1
    made.partition.check()


def test_what_is_bad_leaves_nothing(made):
    block = encode_block([b"k"], [b"v"], partition=0, producer_id=7, producer_seq=1).stamped(1, 1)
    with pytest.raises(BadBlock):
        write_block(made.partition, block, made.journal, now_us=1, now=0.0)
    assert made.journal.blocks == []
    assert made.take(b"k", b"v").versions.first_seq == 1


def test_a_resend_is_not_checked_against_its_condition_again(made):
    """It was taken when the condition held; that it does not any more is its own doing."""
    first = made.take(b"k", b"v", WriteFlag.IF_ABSENT)
    again = made.take(b"k", b"v", WriteFlag.IF_ABSENT | WriteFlag.RESEND, number=1)
    assert again == (first.versions, False)
    assert len(made.journal.blocks) == 1


def test_out_of_order_comes_before_conditions(made):
    made.take(b"k", b"v")
    with pytest.raises(OutOfOrder) as caught:
        made.take(b"k", b"v", WriteFlag.IF_ABSENT, number=5)
    assert caught.value.expected == 2


def test_timestamps_never_fall(made):
    stamps = []
    for now_us in (500, 300, 800, 0):
        made.take(b"k", b"v", now_us=now_us)
        stamps.append(made.journal.blocks[-1][1].header.timestamp)
    assert stamps == [500, 500, 800, 800]


def test_who_watches_a_level_hears_of_it(made):
    heard = []
    watchers = {level: (lambda level=level: heard.append(level)) for level in (Level.MEMORY, Level.DISK)}
    for level, notify in watchers.items():
        made.partition.watchers.watch(level, notify)
    made.take(b"k", b"v")
    assert heard == [Level.MEMORY]
    assert [made.partition.visible_seq(level) for level in (Level.MEMORY, Level.DISK)] == [1, 0]
    made.partition.durable_through(1)
    assert heard == [Level.MEMORY, Level.DISK]
    for level, notify in watchers.items():
        made.partition.watchers.unwatch(level, notify)
        made.partition.watchers.unwatch(level, notify)
    made.take(b"k", b"v")
    assert len(heard) == 2
