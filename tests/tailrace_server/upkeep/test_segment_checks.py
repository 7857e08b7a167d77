"""Damage that no reader has met: files that are gone or cut, and bytes that have changed."""

import contextlib
import os

import pytest
import trio
from tests.tailrace_server.replication.made_set import free_addresses, make_config, numbered, put, until

import tailrace
from tailrace_server.config import StorageConfig
from tailrace_server.node.start import open_node
from tailrace_server.upkeep import segment_checks

pytestmark = pytest.mark.slow


@pytest.fixture
def open_alone(tmp_path):
    """Opens a node alone whose feed "orders" has its rows in segments, with these bounds of its storage."""

    @contextlib.asynccontextmanager
    async def open_it(**storage):
        [address] = free_addresses(1)
        config = make_config(tmp_path / "data", address, storage=StorageConfig(**{"reserve_bytes": 0} | storage))
        async with open_node(config) as node, tailrace.connect(f"tailrace://{address}") as client:
            feed = await client.create_feed("orders", partitions=2)
            await put(feed, numbered(0, 1_000), level="disk")
            for partition in node.feeds.named("orders").partitions:
                await node.storage.flusher.flush_all(partition)
            yield node, client

    return open_it


def segment_of(node, partition=0):
    return node.feeds.named("orders").partitions[partition].chain.segments[0]


def unreadable(node):
    return [(told["partition"], told["why"]) for told in node.status()["replication"]["unreadable"]]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (os.remove, "it cannot be opened: No such file"),
        (lambda path: os.truncate(path, 100), "it has 100 bytes, and was written with"),
    ],
)
async def test_a_look_finds_files_that_are_gone_or_cut(open_alone, damage, why):
    async with open_alone(check_rate=0) as (node, _):
        await node.storage.checks.looked(60)
        assert not node.storage.damages
        damage(segment_of(node).path)
        await node.storage.checks.looked(60)
        [(partition, told)] = unreadable(node)
        assert partition == 0
        assert why in told
        assert not node.health()["healthy"]
        await node.storage.checks.looked(60)
        assert len(node.storage.damages) == 1


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        [byte] = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
async def test_a_pass_finds_a_bit_that_has_changed_anywhere(open_alone, part):
    async with open_alone(check_rate=1 << 30, check_pause_s=0.01) as (node, _):
        await until(lambda: node.status()["storage"]["check_passes"] >= 2)
        assert not node.storage.damages
        segment = segment_of(node, 1)
        flip(segment.path, int(part * (segment.nbytes - 1)))
        await until(lambda: unreadable(node))
        [(partition, told)] = unreadable(node)
        assert partition == 1
        assert "checksum" in told
        count = node.status()["storage"]["check_passes"]
        await until(lambda: node.status()["storage"]["check_passes"] > count)


async def test_no_pass_is_made_if_none_is_wanted(open_alone):
    async with open_alone(check_rate=0, check_pause_s=0.01) as (node, _):
        flip(segment_of(node).path, 500)
        await node.storage.checks.looked(60)
        assert not node.storage.damages
        assert (node.status()["storage"]["check_passes"], node.status()["storage"]["checked_bytes"]) == (0, 0)


async def test_segments_that_leave_meanwhile_are_no_damage(open_alone, monkeypatch):
    """Compactions replace segments, and feeds are dropped, while all of them are looked at and read."""
    monkeypatch.setattr(segment_checks, "LOOK_SECONDS", 0.001)
    async with open_alone(check_rate=1 << 30, check_pause_s=0.0) as (node, client):
        feed = client.feed("orders")
        for number in range(30):
            other = await client.create_feed(f"other-{number}", partitions=3)
            await put(other, numbered(0, 50), level="disk")
            await put(feed, numbered(number, 50), level="disk")
            for each in node.feeds:
                for partition in each.partitions:
                    await node.storage.flusher.flush_all(partition)
            await client.drop_feed(f"other-{number}")
        await until(lambda: node.status()["storage"]["compactions"] >= 5)
        assert not node.storage.damages
        assert node.status()["storage"]["check_passes"]


async def test_a_disk_that_hangs_holds_no_caller_up(open_alone, monkeypatch):
    async with open_alone(check_rate=0) as (node, _):
        hangs = trio.Event()

        async def hang(function):
            await hangs.wait()
            return function()

        monkeypatch.setattr(node.host.workers, "in_own_thread", hang)
        await node.storage.checks.looked(0.05)
        hangs.set()
