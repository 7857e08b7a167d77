import dataclasses
import os

import pytest

import tailrace
from tailrace.block import encode_block
from tailrace.model import Level
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.wire.failures import OutOfOrder
from tailrace.wire.frames import encode_frame
from tailrace.wire.messages import Write, WriteFlag, Written, decode_error
from tailrace.wire.opcodes import Opcode
from tailrace_server.config import StorageConfig
from tailrace_server.journal import DirectoryInUse
from tailrace_server.node.start import open_node

KEY = b"key"
PARTITION = partition_of_hash(key_hash(KEY), 4)


def partition(running, number=PARTITION):
    return running.node.feeds.named("orders").partitions[number]


async def restart(running, *, clean):
    await (running.stop() if clean else running.kill())
    await running.start()


async def test_a_new_directory_begins_at_term_1(running, feed):
    assert running.node.services.unclean_start is None
    log = partition(running).log
    assert [(entry.term, entry.base) for entry in log] == [(1, 0)]


async def test_a_clean_restart_begins_no_branch(running, feed):
    version = await feed.put(KEY, b"v")
    before = running.node.identity, partition(running).log
    for _ in range(3):
        await restart(running, clean=True)
        assert running.node.services.unclean_start is None
        assert (running.node.identity, partition(running).log) == before
    item = await feed.get(KEY)
    assert (item.value, item.version) == (b"v", version)
    assert (await feed.put(KEY, b"w")) == version._replace(seq=2)


async def test_an_unclean_restart_begins_a_branch_in_every_partition(running, feed):
    old = await feed.put(KEY, b"v")
    identity = running.node.identity
    await restart(running, clean=False)
    assert "no mark of a clean stop" in running.node.services.unclean_start
    assert running.node.identity == identity
    for held in running.node.feeds.named("orders").partitions:
        assert held.log.term == 2
        assert held.log[0].base == held.high_seq
        # A branch that held nothing is forgotten.
        assert len(held.log) == (2 if held.high_seq else 1)
    assert (await feed.get(KEY)).version == old, "an old version keeps its branch"
    assert [item.version async for item in feed.items()] == [old]
    new = await feed.put(KEY, b"w", if_version=old)
    assert (new.seq, new.branch) == (2, partition(running).log.branch)
    assert new.branch != old.branch
    assert {item.version async for item in feed.items()} == {new}


async def test_crashes_without_writes_do_not_push_out_history(running, feed):
    first = await feed.put(KEY, b"v")
    for _ in range(10):
        await restart(running, clean=False)
    log = partition(running).log
    assert log.term == 11
    assert [entry.base for entry in log] == [1, 0]
    assert (await feed.get(KEY)).version == first


async def test_everything_written_survives_both_ways(running, client, feed):
    history = await client.create_feed("history", retention="history", partitions=2)
    for number in range(20):
        await feed.put(b"%d" % number, b"v")
        await history.put(KEY, b"%d" % number)
        if number % 5 == 4:
            await restart(running, clean=number % 2 == 0)
    assert [info.name for info in await client.feeds()] == ["history", "orders"]
    assert len([item async for item in feed.items()]) == 20
    async with history.consume(until="now") as stream:
        values = [m.value async for event in stream if isinstance(event, tailrace.Mutations) for m in event]
    assert values == [b"%d" % number for number in range(20)]


async def test_a_dropped_feed_stays_dropped(running, client, feed):
    await feed.put(KEY, b"v")
    await client.drop_feed("orders")
    again = await client.create_feed("orders", partitions=4)
    await again.put(KEY, b"w")
    for clean in (True, False):
        await restart(running, clean=clean)
        assert (await again.get(KEY)).value == b"w"
        assert partition(running).high_seq == 1


async def test_files_of_the_journal_are_all_read(run_node, node_config):
    storage = StorageConfig(journal_file_bytes_max=10_000)
    config = dataclasses.replace(node_config, data=node_config.data + "-small", storage=storage)
    small = await run_node(config)
    async with tailrace.connect(small.url) as client:
        feed = await client.create_feed("orders", partitions=4)
        for number in range(30):
            await feed.put(b"%d" % number, os.urandom(1000))
        assert small.node.storage.journal.statistics().files > 2
        await restart(small, clean=False)
        assert len([item async for item in feed.items()]) == 30


@pytest.mark.parametrize("clean", [True, False])
async def test_a_resend_is_recognised_after_a_restart(running, feed, raw, clean):
    feed_id = (await feed.resolve()).feed_id

    async def write(number, flags=WriteFlag.RESEND):
        block = encode_block([KEY], [b"v"], partition=PARTITION, producer_id=77, producer_seq=number)
        async with raw() as connection:
            await connection.hello()
            body = Write.encode_fixed(feed_id, Level.DISK, flags) + block.tobytes()
            await connection.send(encode_frame(Opcode.WRITE, body, 1))
            frame = await connection.receive()
            return Written.decode(frame.body) if frame.opcode is Opcode.WRITTEN else decode_error(frame.body)

    written = [await write(number) for number in (1, 2, 3)]
    await restart(running, clean=clean)
    assert [await write(number) for number in (1, 2, 3)] == written
    error = await write(5)
    assert isinstance(error, OutOfOrder)
    assert error.expected == 4
    assert (await write(4)).first_seq == 4
    assert partition(running).high_seq == 4


async def test_timestamps_never_go_back(running, feed, monkeypatch):
    """A wall clock that is set back does not make a later mutation look older, also not after a restart."""
    stamps = []
    for microseconds in (2_000_000, 1_000_000, 3_000_000):
        monkeypatch.setattr(type(running.node.host.clock), "wall_us", lambda self, us=microseconds: us)
        await feed.put(KEY, b"v")
        stamps.append((await feed.get(KEY)).timestamp)
        await restart(running, clean=True)
    assert stamps == [2_000_000, 2_000_000, 3_000_000]


async def test_a_directory_is_one_nodes(running, node_config):
    with pytest.raises(DirectoryInUse):
        async with open_node(node_config):
            raise AssertionError("it was let in")


async def test_an_address_that_is_taken(running, node_config, tmp_path):
    config = dataclasses.replace(running.config, data=str(tmp_path / "other"))
    with pytest.raises(OSError, match="in use"):
        async with open_node(config):
            raise AssertionError("it listens")
    async with open_node(dataclasses.replace(config, listen=("127.0.0.1", 0))) as node:
        assert node.services.unclean_start is None, "what failed to listen has stopped cleanly"


async def test_a_copied_directory_is_not_the_one_that_stopped_cleanly(running, feed, tmp_path):
    await feed.put(KEY, b"v")
    await running.stop()
    running.copy_data(tmp_path / "copy")
    copied = dataclasses.replace(running.config, data=str(tmp_path / "copy"))
    async with open_node(copied) as node:
        assert node.services.unclean_start is not None
        assert node.feeds.named("orders").partitions[PARTITION].log.term == 2
    await running.start()
    assert running.node.services.unclean_start is None
