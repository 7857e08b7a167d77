"""The removal of a large file: in steps if it is alone, at once if another name or descriptor may need its content."""

from __future__ import annotations

import contextlib
import errno
import os

import pytest

from tailrace_server.host import removal
from tailrace_server.host.disk import RealDisk
from tailrace_server.host.removal import STEP_BYTES, remove_in_steps

SIZE = 3 * STEP_BYTES + 1


@pytest.fixture(autouse=True)
def sizes(monkeypatch):
    """The sizes to which a file was shortened."""
    found = []
    truncate = os.ftruncate

    def ftruncate(fd, size):
        found.append(size)
        truncate(fd, size)

    monkeypatch.setattr(os, "ftruncate", ftruncate)
    monkeypatch.setattr(removal.time, "sleep", lambda seconds: None)
    return found


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        os.truncate(file.fileno(), SIZE)
    return path


@contextlib.contextmanager
def leases(path):
    """Skips the test if the file system has no leases."""
    with path.open("r+b") as file:
        os.unlink(path)
        if not removal.is_alone(file.fileno()):
            pytest.skip("the file system has no leases")
    with path.open("wb") as file:
        os.truncate(file.fileno(), SIZE)
    yield


def test_the_space_is_given_back_in_steps_when_the_name_is_gone(path, sizes, monkeypatch):
    with leases(path):
        monkeypatch.setattr(removal.time, "sleep", lambda seconds: named.append(path.exists()))
        named = []
        remove_in_steps(str(path))
    assert sizes == [SIZE - STEP_BYTES, SIZE - 2 * STEP_BYTES, SIZE - 3 * STEP_BYTES]
    assert named == [False] * 3


def test_a_file_with_another_name_keeps_its_content(path, sizes):
    other = path.with_name("backup")
    os.link(path, other)
    remove_in_steps(str(path))
    assert (path.exists(), other.stat().st_size, sizes) == (False, SIZE, [])


def test_a_file_that_is_open_elsewhere_keeps_its_content(path, sizes):
    with path.open("rb") as reader:
        remove_in_steps(str(path))
        assert os.fstat(reader.fileno()).st_size == SIZE
    assert (path.exists(), sizes) == (False, [])


def test_a_small_file_is_removed_at_once(path, sizes):
    os.truncate(path, STEP_BYTES)
    remove_in_steps(str(path))
    assert (path.exists(), sizes) == (False, [])


def test_a_link_is_removed_and_not_its_target(path, sizes):
    link = path.with_name("link")
    link.symlink_to(path)
    remove_in_steps(str(link))
    assert (link.is_symlink(), path.stat().st_size, sizes) == (False, SIZE, [])


def test_without_a_free_descriptor_it_is_removed_at_once(path, sizes, monkeypatch):
    def full(*arguments):
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "open", full)
    remove_in_steps(str(path))
    assert (path.exists(), sizes) == (False, [])


def test_a_file_system_that_cannot_shorten_it_removes_it_all_the_same(path, monkeypatch):
    def ftruncate(fd, size):
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "ftruncate", ftruncate)
    remove_in_steps(str(path))
    assert not path.exists()


def test_a_file_that_is_missing(path):
    path.unlink()
    with pytest.raises(FileNotFoundError):
        RealDisk().remove_large(str(path))
