"""The file of a static coordinator: durable, whole after each crash, and refused if it is damaged."""

from __future__ import annotations

import random

import pytest
from tests.memory_disk import Crashed, MemoryDisk

from tailrace_server.coordination.coordinator import NO_ENTRY, Put, StoreDamaged, Unchanged
from tailrace_server.coordination.static_store import StaticStore
from tailrace_server.host.disk import write_atomically
from tailrace_server.journal.reserve import PIECE_BYTES, Reserve

PATH = "/data/CLUSTER"


def made_disk():
    disk = MemoryDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


async def test_values_and_revisions_outlive_the_process_and_keys_of_leases_do_not():
    disk = made_disk()
    store = StaticStore(disk, PATH)
    lease = await store.lease(60)
    await store.txn([], [Put("a", b"\x00"), Put("b", b"2", lease.id)])
    await store.txn([], [Put("a", b"\xff")])
    entry = await store.get("a")
    again = StaticStore(disk, PATH)
    assert await again.get("a") == entry
    assert await again.get("b") == NO_ENTRY
    await again.txn([], [Put("c", b"")])
    assert (await again.get("c")).revision > entry.revision


async def test_on_a_full_disk_the_members_get_room_by_the_reserve():
    disk = MemoryDisk(size_bytes=10 * PIECE_BYTES)
    disk.make_directory("/data")
    reserve = Reserve(disk, "/data", PIECE_BYTES)
    reserve.make()
    StaticStore(disk, PATH).write([], [Put("voters", b"1")])
    write_atomically(disk, "/data/rows", bytes(disk.free_bytes("/data")))
    with pytest.raises(OSError, match="No space"):
        StaticStore(disk, PATH).write([], [Put("voters", b"2" * 100)])
    store = StaticStore(disk, PATH, reserve.write_small)
    store.write([], [Put("voters", b"2" * 100)])
    assert StaticStore(disk, PATH).read("voters").value == b"2" * 100
    assert reserve.held_bytes == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_crash_leaves_the_values_before_a_write_or_after_it(seed):
    seen = set()
    for number in range(20):
        disk = made_disk()
        store = StaticStore(disk, PATH)
        store.write([], [Put("a", b"1"), Put("b", b"1")])
        disk.crash_at(number)
        try:
            store.write([], [Put("a", b"2"), Put("b", b"2")])
            is_done = True
        except Crashed:
            is_done = False
        disk.cut_power(random.Random(seed))
        found = StaticStore(disk, PATH)
        assert found.read("a").value == found.read("b").value
        assert found.read("a").value in ((b"2",) if is_done else (b"1", b"2"))
        seen.add((is_done, found.read("a").value))
        if is_done:
            break
    assert {(False, b"1"), (True, b"2")} <= seen


async def test_after_a_full_disk_nothing_has_changed():
    disk = made_disk()
    store = StaticStore(disk, PATH)
    store.write([], [Put("a", b"1")])
    revision = store.read("a").revision

    def full(name, path):
        raise OSError(28, "No space left on device")

    disk.before = full
    with pytest.raises(OSError, match="No space"):
        store.write([], [Put("a", b"2")])
    disk.before = None
    assert store.read("a").value == b"1"
    assert store.write([Unchanged("a", revision)], [Put("a", b"3")])


async def test_a_damaged_file_is_refused():
    disk = made_disk()
    StaticStore(disk, PATH).write([], [Put("a", b"1")])
    with_file = disk.open(PATH, writable=True)
    data = with_file.read_at(0, with_file.size())
    for changed in (
        b"",
        b"{}",
        data[:-20],
        data.replace(b'"MQ=="', b'"Mg=="'),
        data.replace(b'"version": 1', b'"version": 2'),
    ):
        with_file.truncate(0)
        with_file.write_at(0, [changed], len(changed))
        with pytest.raises(StoreDamaged, match="/data/CLUSTER"):
            StaticStore(disk, PATH)
