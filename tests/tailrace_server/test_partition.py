import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tailrace_server.stored import FakeJournal

from tailrace.block import encode_block
from tailrace.errors import BadBlock, NoSpace, VersionConflict, VersionLost
from tailrace.failover import FailoverEntry
from tailrace.hashing import partition_range
from tailrace.model import Level, Version, VersionRange
from tailrace.wire.failures import OutOfOrder
from tailrace.wire.messages import WriteFlag
from tailrace_server.partition import Partition

FEED = b"f" * 16
U, V = b"u" * 16, b"v" * 16


class Made:
    """A partition that owns every hash, with its index kept level."""

    def __init__(self):
        self.partition = Partition(FEED, 0, *partition_range(0, 1))
        self.partition.log = self.partition.log.with_entry(FailoverEntry(U, 1, 0))
        self.journal = FakeJournal()
        self.numbers = 0

    def take(self, key, value, flags=0, *, number=None, now_us=1000, if_version=None):
        if number is None:
            self.numbers += 1
            number = self.numbers
        block = encode_block([key], [value], partition=0, producer_id=7, producer_seq=number)
        self.partition.keys.catch_up(self.partition.tree, lambda: False)
        return self.partition.take(block, self.journal, now_us=now_us, now=0.0, flags=flags, if_version=if_version)

    def refused(self):
        """The number of what was refused is the next one's."""
        self.numbers -= 1


@pytest.fixture
def made():
    return Made()


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
        made.partition.take(block, made.journal, now_us=1, now=0.0)
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
        made.partition.watch(level, notify)
    made.take(b"k", b"v")
    assert heard == [Level.MEMORY]
    assert [made.partition.visible_seq(level) for level in (Level.MEMORY, Level.DISK)] == [1, 0]
    made.partition.durable_through(1)
    assert heard == [Level.MEMORY, Level.DISK]
    for level, notify in watchers.items():
        made.partition.unwatch(level, notify)
        made.partition.unwatch(level, notify)
    made.take(b"k", b"v")
    assert len(heard) == 2


def test_an_old_version_keeps_its_branch(made):
    old = made.take(b"old", b"v").versions
    made.partition.log = made.partition.new_branch(V)
    assert made.partition.log == ((V, 2, 1), (U, 1, 0))
    new = made.take(b"new", b"v").versions
    assert (old.branch, new.branch) == (U, V)
    assert made.partition.version_of(1) == Version(0, U, 1)
    for never, error in (
        (Version(0, U, 2), VersionLost),
        (Version(0, V, 1), VersionConflict),
        (Version(0, V, 3), VersionConflict),
        (Version(0, b"x" * 16, 1), VersionConflict),
    ):
        with pytest.raises(error):
            made.take(b"old", b"w", WriteFlag.IF_VERSION, if_version=never)
        made.refused()
    assert made.take(b"old", b"w", WriteFlag.IF_VERSION, if_version=Version(0, U, 1)).fresh


KEYS = [b"a", b"b"]
steps = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        st.none() | st.binary(max_size=3),
        st.sampled_from([0, WriteFlag.IF_ABSENT, WriteFlag.IF_PRESENT, WriteFlag.IF_VERSION]),
        st.integers(0, 12),
    ),
    max_size=30,
)


@given(steps)
def test_conditions_hold_against_a_dict(taken):
    """{key: seq} of what is there; a refused write changes nothing and uses up nothing."""
    made, state, seq = Made(), {}, 0
    for key, value, flag, named in taken:
        present = key in state
        expected = {
            0: True,
            WriteFlag.IF_ABSENT: not present,
            WriteFlag.IF_PRESENT: present,
            WriteFlag.IF_VERSION: state.get(key) == named,
        }[flag]
        try:
            found = made.take(key, value, flag, if_version=Version(0, U, named))
        except VersionConflict as error:
            assert error.current == (Version(0, U, state[key]) if present else None)  # noqa: PT017
            assert not expected
            made.refused()
            continue
        if not found.fresh:
            assert flag == WriteFlag.IF_PRESENT
            assert not present
            assert found.versions.first_seq == 0
            made.refused()
            continue
        assert expected
        seq += 1
        assert found.versions == VersionRange(0, U, seq, seq)
        if value is None:
            state.pop(key, None)
        else:
            state[key] = seq
    assert made.partition.high_seq == seq
    made.partition.check()
