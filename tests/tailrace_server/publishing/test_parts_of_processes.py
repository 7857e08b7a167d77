"""A node in a process of its own: killed between the parts of a batch, and what a large batch takes of memory."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import pytest
from tests.processes.node import NodeProcess
from tests.processes.program import SMALL_PARTS, Orders

import tailrace
from tailrace import blocking

KEYS = [b"%d" % number for number in range(300)]
# Kills itself when so many parts are in the journal, as a file says.
DYING = """
import os, signal
from tailrace_server.partition import published
publish = published.publish
order = {order!r}

def publish_and_die(*arguments, **named):
    versions = publish(*arguments, **named)
    if os.path.exists(order):
        left = int(open(order).read()) - 1
        if left:
            open(order, "w").write(str(left))
        else:
            os.remove(order)
            os.kill(os.getpid(), signal.SIGKILL)
    return versions

published.publish = publish_and_die
"""
# Little else may be in memory.
LEAN = {"memory_bytes_max": 48 << 20, "stage_kept_bytes_max": 16 << 20}
MIB = 1024 * 1024


def staged(feed, pieces):
    """The batch, cut into stages in some way: each key's rows are in one of them."""
    stages = []
    for piece in range(pieces):
        with feed.stage(batch_rows=5 + piece) as stage:
            for key in KEYS[piece::pieces]:
                stage.put(key, b"first")
                stage.put(key, b"second")
            stages.append(stage.seal())
    return stages


def dying_node(folder, order):
    planted = SMALL_PARTS.planted + DYING.format(order=str(order))
    return NodeProcess(folder / "data", dataclasses.replace(SMALL_PARTS, planted=planted))


@pytest.mark.long
def test_a_node_that_is_killed_between_parts(tmp_path):
    order = tmp_path / "order"
    node = dying_node(tmp_path, order)
    try:
        node.start()
        with blocking.connect(node.url) as client:
            feed = client.create_feed("orders", partitions=2)
            for pieces, parts in ((1, 1), (2, 2), (3, 1), (5, 4)):
                order.write_text(str(parts))
                with contextlib.suppress(tailrace.Unreachable):
                    feed.publish("job", 0, staged(feed, pieces), timeout=1.0)
                assert node.died()
                node.start()
            feed.publish("job", 0, staged(feed, 4))
            assert sum(partition.high_seq for partition in feed.partitions()) == 2 * len(KEYS)
            assert {item.value for item in feed.get_many(KEYS)} == {b"second"}
            assert feed.publish("job", 0, staged(feed, 4)).written == {}
    finally:
        node.stop()


@pytest.mark.long
def test_a_node_that_is_killed_finds_its_stages_and_goes_on_by_itself(tmp_path):
    """The client asks again, and does not notice."""
    order = tmp_path / "order"
    node = dying_node(tmp_path, order)
    try:
        node.start()
        with blocking.connect(node.url) as client:
            feed = client.create_feed("orders", partitions=1)
            stages = staged(feed, 3)
            for parts in (2, 3):
                order.write_text(str(parts))
                with pytest.raises(tailrace.Unreachable):
                    feed.publish("job", 0, stages, timeout=1.0)
                assert node.died()
                node.start()
            feed.publish("job", 0, stages)
            assert [partition.high_seq for partition in feed.partitions()] == [2 * len(KEYS)]
    finally:
        node.stop()


def memory_peak(node):
    """The most that the process has had, in MiB."""
    [line] = [line for line in Path(f"/proc/{node.pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


@pytest.mark.long
def test_a_large_batch_takes_no_memory_of_its_size(tmp_path):
    """1 GiB in one partition, that does not compress."""
    import random

    node = NodeProcess(tmp_path / "data", Orders(storage=LEAN))
    rnd = random.Random(1)
    try:
        node.start()
        with blocking.connect(node.url) as client:
            feed = client.create_feed("orders", partitions=1)
            stages, keys = [], 0
            while keys < 1024:
                with feed.stage() as stage:
                    for _ in range(64):
                        stage.put(b"%d" % keys, rnd.randbytes(MIB))
                        keys += 1
                    stages.append(stage.seal())
            before = memory_peak(node)
            published = feed.publish("job", 0, stages)
            assert [(v.first_seq, v.last_seq) for v in published.written.values()] == [(1, 1024)]
            assert memory_peak(node) < before + 512
            assert feed.get(b"1000") is not None
    finally:
        node.stop()
