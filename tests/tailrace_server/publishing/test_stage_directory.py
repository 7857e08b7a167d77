"""The directory of the stages: what a failing disk, a crash and damage leave of their files."""

from __future__ import annotations

import errno
import random

import pytest
from tests.memory_disk import MemoryFile
from tests.tailrace_server.publishing.blocks import block
from tests.tailrace_server.publishing.test_stages import FEED, ONE, TWO, Made

from tailrace.errors import NoSpace, UnknownStage
from tailrace.wire.stage_messages import StageSeal
from tailrace_server.publishing import open_stage


@pytest.fixture
def made():
    return Made()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", ["sync", "rename", "sync_directory"])
def test_a_seal_that_fails_leaves_nothing(made, call, code):
    made.take(0)
    stage = made.stages.begin_seal(StageSeal(FEED, ONE, 1, 2, made.stages._open[ONE].sum.intdigest()))
    made.disk.fail(call, code)
    with pytest.raises(UnknownStage, match="stage its rows anew"):
        made.stages.directory.seal(stage)
    made.disk.before = None
    made.stages.lost(stage)
    assert made.stages.missing(FEED, [ONE]) == [ONE]
    assert made.stages.statistics() == (0, 0, 0)
    assert made.names == []
    assert made.take(0) == 1, "its rows can be staged anew"


@pytest.mark.parametrize("call", ["write_at", "truncate"])
def test_a_seal_without_room_may_be_tried_again(made, call):
    made.take(0)
    made.take(1)
    checksum = made.stages._open[ONE].sum.intdigest()
    made.disk.fail(call, errno.ENOSPC)
    for _ in range(2):
        stage = made.stages.begin_seal(StageSeal(FEED, ONE, 2, 4, checksum))
        with pytest.raises(NoSpace):
            made.stages.directory.seal(stage)
        made.stages.not_sealed(stage)
    assert made.stages.statistics() == (1, 0, 2 * block().nbytes)
    made.disk.before = None
    made.seal(2)
    assert made.stages.directory.read_blocks(ONE, made.stages.directory.read_index(ONE)) == [block(), block()]


def test_a_stage_that_cannot_begin_leaves_no_file(made):
    made.disk.fail("write_at", errno.ENOSPC)
    with pytest.raises(NoSpace):
        made.take(0)
    made.disk.before = None
    assert made.names == []


@pytest.mark.parametrize("damaged", [None, 0, 40, 60, 99])
def test_a_stage_is_opened_again_in_small_parts(made, monkeypatch, damaged):
    """Whatever is damaged, no read is larger than a part, or one block: a stage may have a gigabyte."""
    made.bounds["bytes_max"] = 10_000_000
    made.start()
    monkeypatch.setattr(open_stage, "SCAN_BYTES", 2_000)
    offsets = []
    for number in range(100):
        made.take(number, number, value=random.Random(number).randbytes(3_000 if number in (50, 60) else 100))
        offsets.append(made.stages._open[ONE].entries[-1].offset)
    path = f"/data/staging/{ONE.hex()}.open"
    if damaged is not None:
        made.disk.flip(path, 8 * (offsets[damaged] + 120))
    made.disk.kill()
    made.start()
    sizes = []
    read_at = MemoryFile.read_at

    def watched(file, offset, nbytes):
        sizes.append(nbytes)
        return read_at(file, offset, nbytes)

    monkeypatch.setattr(MemoryFile, "read_at", watched)
    stage = made.stages.directory.reopen(ONE)
    assert len(stage.entries) == (100 if damaged is None else damaged)
    assert max(sizes) <= block(value=random.Random(50).randbytes(3_000)).nbytes


def test_what_is_no_stage_is_removed_when_its_writer_comes(made):
    made.take(0)
    made.disk.kill()
    made.disk.flip(f"/data/staging/{ONE.hex()}.open", 8 * 20)
    made.start()
    made.stages.reopened(ONE, made.stages.directory.reopen(ONE))
    assert made.names == []
    assert made.stages.statistics() == (0, 0, 0)


def test_sealed_ones_are_found_by_a_start_and_damaged_ones_are_none(made):
    for id in (ONE, TWO):
        made.take(0, id=id)
        made.seal(id=id)
    path = f"/data/staging/{TWO.hex()}.stage"
    made.disk.flip(path, 8 * (len(made.disk.content(path)) - 1))
    made.disk.kill()
    made.start()
    assert made.stages.missing(FEED, [ONE, TWO]) == [TWO]
    assert made.names == [ONE.hex() + ".stage"]
    assert made.stages.statistics().sealed == 1
    path = f"/data/staging/{ONE.hex()}.stage"
    made.disk.flip(path, 8 * 100)
    with pytest.raises(UnknownStage, match="cannot be read"):
        made.stages.directory.read_blocks(ONE, made.stages.directory.read_index(ONE))
