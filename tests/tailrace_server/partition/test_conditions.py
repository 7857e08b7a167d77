"""Conditional writes of a partition whose rows are all in its tree; with segments: test_partition_storage.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tailrace_server.stored import TakingPartition

from tailrace.errors import VersionConflict, VersionLost
from tailrace.model import Version, VersionRange
from tailrace.wire.messages import WriteFlag
from tailrace_server.partition.branching import with_branch

U, V = b"u" * 16, b"v" * 16


@pytest.fixture
def made():
    return TakingPartition()


def test_an_old_version_keeps_its_branch(made):
    old = made.take(b"old", b"v").versions
    made.partition.log = with_branch(made.partition.log, V, made.partition.high_seq)
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
    made, state, seq = TakingPartition(), {}, 0
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
