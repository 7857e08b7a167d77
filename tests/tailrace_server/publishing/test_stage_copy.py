"""Copies of sealed stages on another node's disk: complete and checked, or nothing of them stays."""

from __future__ import annotations

import errno

import pytest
from tests.tailrace_server.publishing.test_stages import FEED, ONE, TWO, Made

from tailrace.errors import NoSpace, Overloaded, TailraceError, UnknownStage

PART_BYTES = 100


@pytest.fixture
def original():
    """The bytes of a sealed stage of two blocks."""
    made = Made()
    made.take(0)
    made.take(1, 1)
    made.seal(2)
    size, data = made.stages.directory.read_part(ONE, 0, 1 << 20)
    assert size == len(data)
    return data


@pytest.fixture
def made():
    return Made()


def copied(made, data, id=ONE, feed=FEED):
    """Copies it as `copy_stage` does."""
    copy, sealed = made.stages.begin_copy(feed, id, len(data)), None
    try:
        for begin in range(0, len(data), PART_BYTES):
            assert not copy.is_complete
            copy.write(data[begin : begin + PART_BYTES])
        assert copy.is_complete
        sealed = copy.seal(made.clock.monotonic())
    finally:
        copy.close()
        made.stages.end_copy(copy, sealed)


def test_a_copy_is_a_sealed_stage_with_the_same_bytes(made, original):
    copied(made, original)
    assert made.names == [ONE.hex() + ".stage"]
    for _ in range(2):
        assert made.stages.directory.read_part(ONE, 0, 1 << 20) == (len(original), original)
        assert made.stages.held(FEED, [ONE, TWO]) == [ONE]
        assert made.stages.held(b"g" * 16, [ONE]) == []
        assert made.stages.copied([ONE, TWO]) == (ONE,), "others may have it, too"
        assert made.stages.statistics() == (0, 1, len(original))
        made.start()


def test_parts_of_a_stage_end_with_its_file(made, original):
    copied(made, original)
    size = len(original)
    assert made.stages.directory.read_part(ONE, size - 5, 100) == (size, original[-5:])
    assert made.stages.directory.read_part(ONE, size + 5, 100) == (size, b"")
    with pytest.raises(UnknownStage, match="cannot be read"):
        made.stages.directory.read_part(TWO, 0, 100)


def test_the_same_copy_twice_counts_once(made, original):
    copied(made, original)
    copied(made, original)
    assert made.names == [ONE.hex() + ".stage"]
    assert made.stages.statistics() == (0, 1, len(original))


@pytest.mark.parametrize("place", [20, 150, -150, -100, -10], ids=["header", "block", "last block", "index", "footer"])
def test_a_damaged_copy_leaves_nothing(made, original, place):
    data = bytearray(original)
    data[place] ^= 1
    with pytest.raises(UnknownStage, match="is damaged"):
        copied(made, bytes(data))
    assert made.names == []
    assert made.stages.statistics() == (0, 0, 0)


@pytest.mark.parametrize("other", [{"id": TWO}, {"feed": b"g" * 16}])
def test_a_copy_of_another_stage_or_feed_leaves_nothing(made, original, other):
    with pytest.raises(UnknownStage, match="is damaged: it is"):
        copied(made, original, **other)
    assert made.names == []


@pytest.mark.parametrize("call", ["create", "write_at", "sync", "rename", "sync_directory"])
@pytest.mark.parametrize(("code", "error"), [(errno.EIO, TailraceError), (errno.ENOSPC, NoSpace)])
def test_a_copy_on_a_disk_that_fails_is_no_stage(made, original, call, code, error):
    copied(made, original)  # so that the folder is there
    made.stages.directory.remove(made.stages.forget([ONE]))
    made.disk.fail(call, code)
    with pytest.raises(error):
        copied(made, original)
    assert made.stages.statistics() == (0, 0, 0)
    assert made.stages.held(FEED, [ONE]) == []


def test_copies_under_way_take_room(made, original):
    size = len(original)
    copy = made.stages.begin_copy(FEED, ONE, 100_000 - size + 1)
    with pytest.raises(Overloaded, match="stages take"):
        copied(made, original, TWO)
    made.stages.end_copy(copy, None)
    copies = [made.stages.begin_copy(FEED, bytes([number]) * 16, 1) for number in range(4)]
    with pytest.raises(Overloaded, match=r"4 that are sealed.*4 together"):
        copied(made, original)
    with pytest.raises(Overloaded, match=r"4 that are sealed.*4 together"):
        made.take(0)
    for copy in copies:
        made.stages.end_copy(copy, None)
    copied(made, original)


def test_a_start_removes_what_a_crash_left_of_a_copy(made, original):
    copy = made.stages.begin_copy(FEED, ONE, len(original))
    copy.write(original[:PART_BYTES])
    assert made.names != []
    made.start()
    assert made.names == []
