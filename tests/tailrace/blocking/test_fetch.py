"""`Feed.fetch` without async, against nodes in processes: they are killed, and their connections are cut anywhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.processes.proxy import BadNetwork

from tailrace import Put, SegmentReader, blocking
from tailrace.errors import BadCopy, Unreachable

ROWS = 2_000


@pytest.fixture
def filled(node_process):
    """A node with 4 MB in two partitions of the feed ``orders``."""
    with blocking.connect(node_process.url) as client:
        feed = client.create_feed("orders", partitions=2)
        feed.write([Put(b"k%d" % number, os.urandom(2_000)) for number in range(ROWS)])
    return node_process


def files_of(folder):
    return {path.name: path.read_bytes() for path in Path(folder).rglob("*.seg")}


def check_equal(node, copy):
    """Each file of the copy is the node's, byte by byte. A node that was killed has files of its own besides."""
    [feed] = [path for path in Path(node.data, "feeds").iterdir() if path.name != f"{1:032x}"]
    assert files_of(copy).items() <= files_of(feed).items()
    SegmentReader(copy).verify()


def fetch(url, path, **options):
    with blocking.connect(url, retry_for=60) as client:
        return client.feed("orders").fetch(path, **options)


def test_a_fetch_over_connections_that_are_cut_in_frames(filled, tmp_path):
    """Most break before a part of 64 KiB has come, so each goes on behind the bytes that came before."""
    network = BadNetwork(filled.port, 7, width=8)
    try:
        fetched = fetch(network.url, tmp_path / "copy")
    finally:
        network.close()
    assert network.cuts > 2
    assert sum(partition.seq for partition in fetched.partitions.values()) == ROWS
    check_equal(filled, tmp_path / "copy")


@pytest.mark.parametrize("at", [0, 1, 2, 4])
def test_a_node_that_is_killed_in_the_middle(filled, tmp_path, at):
    calls = []

    def progress(received, wanted):
        calls.append(received)
        if len(calls) == at + 1:
            filled.kill()
            filled.start()

    fetched = fetch(filled.url, tmp_path / "copy", progress=progress)
    assert sum(partition.seq for partition in fetched.partitions.values()) == ROWS
    check_equal(filled, tmp_path / "copy")


def test_a_node_that_does_not_come_back(filled, tmp_path):
    while filled.is_running:  # a slow machine may take a second before there is progress
        with pytest.raises(Unreachable), blocking.connect(filled.url) as client:
            client.feed("orders").fetch(
                tmp_path / "copy", progress=lambda *told: filled.is_running and filled.kill(), timeout=1
            )
    assert not list(Path(tmp_path).rglob("CHECKPOINT.json"))
    filled.start()
    fetched = fetch(filled.url, tmp_path / "copy")
    assert sum(partition.seq for partition in fetched.partitions.values()) == ROWS
    check_equal(filled, tmp_path / "copy")


def test_a_directory_that_another_fetch_uses(filled, tmp_path):
    refused = []

    def progress(received, wanted):
        if not refused:
            with pytest.raises(BadCopy, match="another fetch works on") as raised:
                fetch(filled.url, tmp_path / "copy")
            refused.append(raised)

    fetch(filled.url, tmp_path / "copy", progress=progress)
    assert refused
    check_equal(filled, tmp_path / "copy")
