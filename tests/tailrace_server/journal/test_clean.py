from __future__ import annotations

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.host.disk import RealDisk, read_file, write_atomically
from tailrace_server.journal import CleanPartition, find_clean, remove_clean, why_unclean, write_clean
from tailrace_server.journal.clean import CleanMark, decode_mark, encode_mark

ID = st.binary(min_size=16, max_size=16)
ONE = CleanPartition(b"F" * 16, 0, b"B" * 16, 41)
TWO = CleanPartition(b"F" * 16, 1, b"C" * 16, 7)
END = (3, 4096)


@pytest.fixture
def disk(memory_disk):
    disk = memory_disk()
    disk.make_directory("/data")
    return disk


def take_clean(disk, directory):
    taken = find_clean(disk, directory)
    remove_clean(disk, directory)
    return taken


def test_a_mark_counts_once(disk):
    write_clean(disk, "/data", END, [TWO, ONE])
    taken = take_clean(disk, "/data")
    assert not disk.exists("/data/CLEAN")
    assert why_unclean(taken, END, [ONE, TWO]) is None
    again = take_clean(disk, "/data")
    assert why_unclean(again, END, [ONE, TWO]) == "there is no mark of a clean stop"


def test_on_a_real_disk(tmp_path):
    write_clean(RealDisk(), str(tmp_path), END, [ONE])
    assert why_unclean(take_clean(RealDisk(), str(tmp_path)), END, [ONE]) is None


@pytest.mark.parametrize(
    ("end", "partitions", "why"),
    [
        ((3, 4104), [ONE, TWO], r"journal end is \(3, 4096\), here it is \(3, 4104\)"),
        ((4, 4096), [ONE, TWO], "journal end"),
        (END, [ONE], f"1 differences in partitions, the first in {'46' * 16}/1"),
        (END, [ONE, TWO._replace(high_seq=8)], "2 differences in partitions"),
        (END, [ONE, TWO._replace(branch=b"D" * 16)], "2 differences in partitions"),
        (END, [ONE, TWO._replace(feed_id=b"G" * 16)], "2 differences in partitions"),
        (END, [], "2 differences in partitions"),
    ],
)
def test_a_mark_of_another_state_does_not_count(disk, end, partitions, why):
    write_clean(disk, "/data", END, [ONE, TWO])
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(why_unclean(take_clean(disk, "/data"), end, partitions))


def test_hazard_7_a_copied_mark_does_not_count(disk):
    write_clean(disk, "/data", END, [ONE])
    write_atomically(disk, "/data/CLEAN", read_file(disk, "/data/CLEAN"))
    assert "inode" in why_unclean(take_clean(disk, "/data"), END, [ONE])


def test_hazard_7_a_copy_that_is_given_the_inodes_of_what_it_replaces_does_not_count(tmp_path):
    """Which the system does as a rule, where a directory is removed and a copy put in its place."""
    disk, data = RealDisk(), tmp_path / "data"
    data.mkdir()
    (data / "NODE").write_bytes(b"node")
    write_clean(disk, str(data), END, [ONE])
    shutil.copytree(data, tmp_path / "copy")
    (data / "NODE").unlink()
    shutil.copy2(tmp_path / "copy" / "NODE", data / "NODE")  # CLEAN itself is the very same
    assert "node changed ns" in why_unclean(take_clean(disk, str(data)), END, [ONE])


def test_hazard_7_a_mark_of_another_disk_host_or_path_does_not_count(disk):
    write_clean(disk, "/data", END, [ONE])
    taken = take_clean(disk, "/data")
    assert why_unclean(taken, END, [ONE]) is None
    assert "device" in why_unclean(taken._replace(device=8), END, [ONE])
    assert "machine id" in why_unclean(taken._replace(machine_id="another"), END, [ONE])
    assert "directory is /data, here it is /copy" in why_unclean(taken._replace(directory="/copy"), END, [ONE])


def test_a_damaged_mark_does_not_count(disk):
    write_clean(disk, "/data", END, [ONE])
    disk.content("/data/CLEAN")[20] ^= 1
    taken = take_clean(disk, "/data")
    assert not disk.exists("/data/CLEAN")
    assert "its checksum is wrong" in why_unclean(taken, END, [ONE])


def test_the_mark_is_durable_when_written_and_gone_when_taken(disk):
    calls = []
    disk.before = lambda name, path: calls.append(name)
    write_clean(disk, "/data", END, [ONE])
    assert calls == ["create", "write_at", "sync", "rename", "sync_directory"]
    calls.clear()
    take_clean(disk, "/data")
    assert calls == ["open", "open", "read_at", "remove", "sync_directory"]


@given(
    partitions=st.lists(st.builds(CleanPartition, ID, st.integers(0, 2**31 - 1), ID, st.integers(0, 2**63 - 1))),
    directory=st.text(),
)
def test_a_mark_comes_back(partitions, directory):
    mark = CleanMark(END, tuple(partitions), "machine", directory, 2**63, 64_769, 2**63)
    assert decode_mark(encode_mark(mark)) == mark


@given(data=st.binary())
def test_any_bytes_are_a_mark_or_a_value_error(data):
    with pytest.raises(ValueError, match="checksum"):
        decode_mark(data)


def test_another_version_of_the_mark_is_named(monkeypatch):
    monkeypatch.setattr("tailrace_server.journal.clean.VERSION", 2)
    data = encode_mark(CleanMark(END, (), "", "", 0, 0, 0))
    monkeypatch.setattr("tailrace_server.journal.clean.VERSION", 1)
    with pytest.raises(ValueError, match="version 2, known is 1"):
        decode_mark(data)
