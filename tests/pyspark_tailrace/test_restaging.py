"""What a task keeps of its blocks: all of them, in memory up to a bound and in files above it, or none."""

from __future__ import annotations

import os
import pickle
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.blocks_of_rows import block_of

from pyspark_tailrace import kept_files
from pyspark_tailrace.kept_files import MACHINE, STALE_SECONDS, KeptFile, KeptFileWriter, KeptFolder
from pyspark_tailrace.restaging import Keeper, KeptStage
from tailrace.block import Block

BLOCKS = [block_of([(b"k", b"v" * size, 1, 1)], compress=False) for size in (1, 50, 400)]
STAGES = st.lists(st.lists(st.sampled_from(BLOCKS), max_size=4), max_size=4)


def read(kept):
    """The heads and digests of kept blocks."""
    kept = pickle.loads(pickle.dumps(KeptStage(b"", kept)))  # as it goes to the driver
    return [(Block.parse(one.data).head, one.digest) for one in kept.read()]


def expected(blocks):
    return [(block.head, digest) for digest, block in enumerate(blocks)]


@given(STAGES, st.integers(0, 4_000))
def test_a_task_without_a_folder_keeps_all_of_its_blocks_or_none(stages, bytes_max):
    taken = 0
    with Keeper(bytes_max, KeptFolder()) as keeper:
        for blocks in stages:
            keeper.next_stage()
            for digest, block in enumerate(blocks):
                keeper.add(block, digest)
                taken += block.nbytes
            assert keeper.is_full == (taken > bytes_max)
            kept = keeper.blocks()
            assert kept is None if keeper.is_full else read(kept) == expected(blocks)


@given(stages=STAGES, bytes_max=st.integers(0, 4_000))
def test_a_task_with_a_folder_keeps_all_of_its_blocks(tmp_path_factory, stages, bytes_max):
    folder = KeptFolder.find(str(tmp_path_factory.getbasetemp()))
    kept, taken = [], 0
    with Keeper(bytes_max, folder, "query-7") as keeper:
        for blocks in stages:
            keeper.next_stage()
            for digest, block in enumerate(blocks):
                keeper.add(block, digest)
                taken += block.nbytes
                assert read(keeper.blocks()) == expected(blocks[: digest + 1]), "a stage may be lost at any time"
            kept.append(keeper.blocks())
        assert not keeper.is_full
    assert [read(of_stage) for of_stage in kept] == [expected(blocks) for blocks in stages]
    in_memory = sum(len(block.data) for of_stage in kept if not isinstance(of_stage, KeptFile) for block in of_stage)
    assert in_memory <= bytes_max
    assert (in_memory < taken) == any(isinstance(of_stage, KeptFile) for of_stage in kept)
    folder.remove_up_to("query", 7)
    assert os.listdir(folder.path) == [MACHINE]


@pytest.mark.parametrize("after", [0, 2])
def test_a_disk_that_is_nearly_full_keeps_nothing(tmp_path, monkeypatch, caplog, after):
    """It is looked at before the first block of a file, and again after some bytes."""
    monkeypatch.setattr(kept_files, "LOOK_BYTES", 1)
    folder = KeptFolder.find(str(tmp_path))
    with Keeper(0, folder, "query-7") as keeper:
        for number in range(4):
            if number == after:
                monkeypatch.setattr(kept_files, "FREE_BYTES_MIN", 1 << 62)
            keeper.add(BLOCKS[0], 7)
            assert (keeper.blocks() is None) == (number >= after)
    assert len(caplog.messages) == 1
    assert "keeps no copy of its rows" in caplog.text
    assert "have to stay so" in caplog.text
    assert list(tmp_path.glob("*/*/*")) == []


@pytest.mark.parametrize("cut", [None, 0, 5, 30])
def test_a_file_that_is_gone_or_cut_is_an_error(tmp_path, cut):
    writer = KeptFileWriter(str(tmp_path))
    for digest, block in enumerate(BLOCKS):
        writer.add(block, digest)
    kept = writer.kept()
    writer.close()
    assert len(list(kept.read())) == len(BLOCKS)
    if cut is None:
        os.unlink(kept.path)
    else:
        os.truncate(kept.path, cut)
    with pytest.raises(OSError, match=r"No such file|ends within a block"):
        list(kept.read())


def test_a_publish_removes_the_files_of_its_query_up_to_its_batch(tmp_path):
    """And what killed drivers left a day ago."""
    folder = KeptFolder.find(str(tmp_path))
    paths = {name: folder.folder_of(name) for name in ("q-6", "q-7", "q-8", "r-7", "q-r-7", "old-9")}
    before = time.time() - STALE_SECONDS - 1
    os.utime(paths["old-9"], (before, before))
    folder.remove_up_to("q", 7)
    assert sorted(os.listdir(folder.path)) == sorted([MACHINE, "q-8", "r-7", "q-r-7"])


def test_all_drivers_and_tasks_of_a_machine_share_a_folder_that_is_closed_to_others(tmp_path):
    folder, again = (KeptFolder.find(str(tmp_path)) for _ in range(2))
    assert folder == again
    assert folder.machine
    assert os.stat(folder.path).st_mode & 0o077 == 0
    assert os.path.isdir(folder.folder_of("q-1"))


def test_a_task_on_another_machine_keeps_nothing_in_a_folder_of_the_same_name(tmp_path):
    folder = KeptFolder.find(str(tmp_path))
    with open(os.path.join(folder.path, MACHINE), "w") as file:
        file.write("another")
    assert folder.folder_of("q-1") is None
    with Keeper(0, folder, "q-1") as keeper:
        keeper.add(BLOCKS[0], 7)
        assert keeper.blocks() is None
    assert os.listdir(folder.path) == [MACHINE]


def test_a_folder_of_another_kind_is_not_used(tmp_path, caplog):
    name = os.path.basename(KeptFolder.find(str(tmp_path)).path)
    (tmp_path / "aside").mkdir()
    (tmp_path / "aside" / name).symlink_to(tmp_path)
    assert KeptFolder.find(str(tmp_path / "aside")) == KeptFolder()
    assert "no folder of this user" in caplog.text


def test_without_a_folder_a_task_goes_on(tmp_path, caplog):
    folder = KeptFolder.find(str(tmp_path / "missing"))
    assert folder == KeptFolder()
    assert "keep no copy of their rows" in caplog.text
    assert folder.folder_of("q-1") is None
    folder.remove_up_to("q", 1)
