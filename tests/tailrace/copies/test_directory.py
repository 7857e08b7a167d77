"""The directory of a copy: what it refuses, and that it belongs to one fetch at a time."""

import os
from functools import partial
from pathlib import Path

import pytest
from tests.tailrace.copies.conftest import FEED, LOG

from tailrace.copies.directory import CopyDirectory
from tailrace.copies.layout import FeedCopy, PartitionCopy
from tailrace.errors import BadCopy
from tailrace.model import FeedInfo


def feed_copy(feed_id=FEED, fetched=(0,), name="orders"):
    info = FeedInfo(name, feed_id, 4, "hash", "compact", None, None, 259_200, "stream")
    return FeedCopy(b"c" * 16, info, fetched)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a" / "copy")


@pytest.fixture
def directory(path):
    made = CopyDirectory(path)
    made.begin(feed_copy())
    yield made
    made.close()


def test_a_directory_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(BadCopy, match="is no copy of a feed, and not empty"):
        CopyDirectory(str(tmp_path))
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_one_fetch_at_a_time(directory, path):
    with pytest.raises(BadCopy, match="another fetch works on"):
        CopyDirectory(path)
    directory.close()
    CopyDirectory(path).close()


@pytest.mark.slow
def test_a_process_that_was_forked_meanwhile_keeps_no_lock(directory, path):
    wait, go_on = os.pipe()
    child = os.fork()
    if not child:
        os.close(go_on)
        os.read(wait, 1)  # until the parent closes its end
        os._exit(0)
    try:
        directory.close()
        CopyDirectory(path).close()
    finally:
        os.close(go_on)
        os.waitpid(child, 0)
        os.close(wait)


@pytest.mark.slow
def test_a_forked_process_does_not_unlock(directory, path):
    child = os.fork()
    if not child:
        directory.close()
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(BadCopy, match="another fetch works on"):
        CopyDirectory(path)


def test_a_copy_of_another_feed_is_left_alone(directory, path):
    feed_file = Path(path, "FEED.json")
    before = feed_file.read_bytes()
    with pytest.raises(BadCopy, match=r"is a copy of the feed 'orders' with the id .*, not of 'clicks'"):
        directory.begin(feed_copy(bytes(16), name="clicks"))
    assert feed_file.read_bytes() == before


def test_a_copy_of_another_cluster_is_left_alone(directory):
    with pytest.raises(BadCopy, match="of a feed of the cluster 6363"):
        directory.begin(feed_copy()._replace(cluster_id=b"d" * 16))


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format":"tailrace copy","version":2}', b"\xff"])
def test_damaged_files_are_named(directory, path, content):
    with open(os.path.join(path, "FEED.json"), "wb") as file:
        file.write(content)
    with pytest.raises(BadCopy, match=r"FEED\.json is damaged"):
        directory.begin(feed_copy())
    folder = directory.open_partition(FEED, 0)
    assert folder == (None, {})
    with open(os.path.join(path, "0", "CHECKPOINT.json"), "wb") as file:
        file.write(content)
    with pytest.raises(BadCopy, match=r"CHECKPOINT\.json is damaged.*remove it"):
        directory.open_partition(FEED, 0)


@pytest.mark.parametrize("name", ["FEED.json", "0/CHECKPOINT.json"])
def test_a_pipe_in_the_place_of_a_file_is_named(directory, path, name):
    directory.open_partition(FEED, 0)
    Path(path, name).unlink(missing_ok=True)
    os.mkfifo(Path(path, name))
    read = directory.begin if name == "FEED.json" else partial(directory.open_partition, FEED)
    with pytest.raises(BadCopy, match=f"{name} is no regular file"):
        read(feed_copy() if name == "FEED.json" else 0)


@pytest.mark.parametrize("name", ["FEED.json.new", "0/CHECKPOINT.json.new"])
def test_a_pipe_in_the_place_of_a_temporary_file_is_named(directory, path, name):
    """A fetch would wait for its other end."""
    directory.open_partition(FEED, 0)
    os.mkfifo(Path(path, name))
    begin = partial(directory.begin, feed_copy(fetched=(1,)))
    write = begin if name.startswith("FEED") else partial(directory.install, FEED, PartitionCopy(0, 0, 0, LOG, ()))
    with pytest.raises(BadCopy, match=f"{name} is no regular file"):
        write()


@pytest.mark.parametrize("name", ["a file", "a file/below"])
def test_a_file_in_the_place_of_the_directory_is_named(tmp_path, name):
    (tmp_path / "a file").touch()
    with pytest.raises(BadCopy, match=f"{name} is no directory, or below a file: name another one"):
        CopyDirectory(str(tmp_path / name))


def test_only_files_of_segments_are_removed(directory, path):
    directory.open_partition(FEED, 0)
    for name in ("notes.txt", "0a" * 16 + ".seg", "0b" * 16 + ".seg.new"):
        with open(os.path.join(path, "0", name), "w"):
            pass
    copy = PartitionCopy(0, 0, 0, LOG, ())
    directory.install(FEED, copy)
    assert sorted(os.listdir(os.path.join(path, "0"))) == ["CHECKPOINT.json", "notes.txt"]
    assert directory.open_partition(FEED, 0).copy == copy


def test_a_half_list_is_removed_also_if_nothing_is_new(directory, path):
    directory.open_partition(FEED, 0)
    copy = PartitionCopy(0, 0, 0, LOG, ())
    directory.install(FEED, copy)
    with open(os.path.join(path, "0", "CHECKPOINT.json.new"), "w"):
        pass
    directory.remove_surplus(copy)
    assert os.listdir(os.path.join(path, "0")) == ["CHECKPOINT.json"]


def test_the_names_of_files_that_were_fetched_again_are_durable(directory, path, monkeypatch):
    """The checkpoint that names them is there already, so that nothing else syncs their folder."""
    copy = PartitionCopy(0, 0, 0, LOG, ())
    directory.open_partition(FEED, 0)
    synced = []
    monkeypatch.setattr("tailrace.copies.directory._sync_directory", synced.append)
    directory.remove_surplus(copy)
    assert synced == [os.path.join(path, "0")]


def test_partitions_of_earlier_fetches_stay(directory, path):
    directory.begin(feed_copy(fetched=(3,)))
    directory.begin(feed_copy(fetched=(1, 3)))
    with open(os.path.join(path, "FEED.json"), "rb") as file:
        assert FeedCopy.decode(file.read()).fetched == (0, 1, 3)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, partial(os.symlink, "nowhere")])
@pytest.mark.parametrize("name", ["0a" * 16 + ".seg", "0b" * 16 + ".seg.new"])
def test_what_has_the_name_of_a_segment_and_is_no_file_is_named(directory, path, name, make):
    directory.open_partition(FEED, 0)
    make(os.path.join(path, "0", name))
    with pytest.raises(BadCopy, match="is no regular file: remove it, and run the fetch again") as caught:
        directory.open_partition(FEED, 0)
    assert caught.value.path == os.path.join(path, "0", name)


def test_a_file_in_the_place_of_a_partition_is_named(directory, path):
    Path(path, "0").touch()
    with pytest.raises(BadCopy, match="0 is no directory: remove it, and run the fetch again"):
        directory.open_partition(FEED, 0)
