# ruff: noqa: PT012 (bodies of context managers are what raises here)
import os

import pytest
import trio

import tailrace
from tailrace import Delete, Put, VersionRange
from tailrace.requests.outbox import Outbox
from tailrace_server.serving.connection import Connection


async def state_of(feed):
    return {item.key: item.value async for item in feed.items()}


async def blocks_of(feed, node, *, partition=None):
    """(first seq, last seq) of every block that the node holds."""
    return [
        (block.header.first_seq, block.header.last_seq)
        for held in node.feeds.named(feed.name).partitions
        if partition in (None, held.id)
        for block in held.tree.blocks_after(0)
    ]


async def test_leaving_waits_until_all_is_acknowledged(feed, node):
    expected = {b"key %d" % number: b"%d" % number for number in range(1000)}
    async with feed.writer() as writer:
        for key, value in expected.items():
            await writer.put(key, value)
        await writer.put(b"gone", b"v")
        await writer.delete(b"gone")
    assert all(p.durable_seq == p.high_seq for p in node.feeds.named("orders").partitions)
    assert sum(p.high_seq for p in node.feeds.named("orders").partitions) == 1002
    assert await state_of(feed) == expected


async def test_flush_gives_the_versions(feed):
    async with feed.writer() as writer:
        assert await writer.flush() == {}
        await writer.write([Put(b"a", b"1"), Put(b"a", b"2"), Delete(b"a")])
        (versions,) = (await writer.flush()).values()
        assert (versions.first_seq, versions.last_seq) == (1, 3)
        await writer.put(b"a", b"3")
        assert await writer.flush() == {versions.partition: versions._replace(first_seq=4, last_seq=4)}
        assert await writer.flush() == {}


async def test_batches_are_bounded_in_rows(client, node):
    feed = await client.create_feed("single", partitions=1)
    async with feed.writer(batch_rows=10, linger_s=3600.0) as writer:
        for number in range(25):
            await writer.put(b"%d" % number, b"v")
    assert await blocks_of(feed, node) == [(1, 10), (11, 20), (21, 25)]


async def test_batches_are_bounded_in_bytes(client, node):
    feed = await client.create_feed("single", partitions=1)
    async with feed.writer(batch_bytes=100, linger_s=3600.0) as writer:
        for number in range(5):
            await writer.put(b"%d" % number, bytes(59))
    assert await blocks_of(feed, node) == [(1, 2), (3, 4), (5, 5)]


async def test_rows_of_a_second_body_leave_by_the_linger_too(feed):
    async def heard(stream, key):
        with trio.fail_after(30):
            async for event in stream:
                if isinstance(event, tailrace.Mutations) and event.keys().count(key):
                    return

    writer = feed.writer(linger_s=0.001)
    async with feed.consume() as stream:
        for number in range(2):
            async with writer:
                await writer.put(b"first", b"%d" % number)
                await heard(stream, b"first")
                await writer.put(b"last", b"%d" % number)  # and the body ends before it has waited
            await heard(stream, b"last")


async def test_what_has_waited_long_enough_is_sent(feed):
    async with feed.writer(linger_s=0.001) as writer, feed.consume() as stream:
        await writer.put(b"k", b"v")
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                assert event.keys() == [b"k"]
                break


@pytest.mark.parametrize("kind", ["put", "delete"])
async def test_plain_rows_behind_a_call_that_an_interrupt_has_ended_do_not_wait(client, kind, monkeypatch):
    class Interrupt(Exception):
        pass

    def interrupted(self, *row):
        add(self, *row)
        raise Interrupt

    add, feed = Outbox.add, await client.create_feed("single", partitions=1)
    async with feed.writer(linger_s=0.001) as writer, feed.consume() as stream:
        with monkeypatch.context() as patch, pytest.raises(Interrupt):
            patch.setattr(Outbox, "add", interrupted)
            await (writer.put(b"a", b"1") if kind == "put" else writer.delete(b"a"))
        await writer.put(b"b", b"2")
        keys = []
        with trio.fail_after(30):
            async for event in stream:
                keys += event.keys() if isinstance(event, tailrace.Mutations) else ()
                if keys == [b"a", b"b"]:
                    break


async def test_bad_rows_are_refused_and_leave_nothing(feed):
    async with feed.writer() as writer:
        await writer.put(b"a", b"1")
        with pytest.raises(TypeError, match="encode"):
            await writer.put("b", b"2")
        with pytest.raises(TypeError, match="encode"):
            await writer.write([Put(b"c", b"3"), Put(b"d", "4")])
        with pytest.raises(tailrace.TooLarge):
            await writer.put(b"e", bytes((1 << 24) + 1))
        await writer.put(b"f", b"6")
    assert await state_of(feed) == {b"a": b"1", b"f": b"6"}


async def test_the_largest_value_fits(feed):
    value = os.urandom(1 << 24)
    async with feed.writer(batch_bytes=8 << 20) as writer:
        await writer.put(b"small", b"v")
        await writer.put(b"large", value)
    assert (await feed.get(b"large")).value == value


async def test_the_first_error_is_raised_by_the_next_call_and_on_leaving(client, feed):
    with pytest.raises(tailrace.UnknownFeed):
        async with feed.writer() as writer:
            await writer.put(b"k", b"v")
            await writer.flush()
            await client.drop_feed("orders")
            await writer.put(b"k", b"v")
            with pytest.raises(tailrace.UnknownFeed):
                await writer.flush()
            with pytest.raises(tailrace.UnknownFeed):
                await writer.put(b"k", b"v")


async def test_room_is_made_before_more_is_sent(feed, node, monkeypatch):
    """put waits while too much has no answer."""
    gate = trio.Event()
    commit = node.storage.committer.commit

    async def wait_and_commit():
        await gate.wait()
        await commit()

    monkeypatch.setattr(node.storage.committer, "commit", wait_and_commit)
    monkeypatch.setattr(node.storage.committer, "turn_ended", lambda _: node.storage.committer._wanted.set())
    put = []

    async def write():
        async with feed.writer(batch_rows=1, in_flight_bytes=1000) as writer:
            for number in range(30):
                await writer.put(b"%d" % number, os.urandom(400))
                put.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        while len(put) < 1:
            await trio.lowlevel.checkpoint()
        await feed.get(b"k", level="memory")
        assert len(put) <= 2
        gate.set()
    assert len(put) == 30


async def test_writers_take_turns(feed):
    async def write(name):
        async with feed.writer(batch_rows=7) as writer:
            for number in range(200):
                await writer.put(b"%s %d" % (name, number), name)

    async with trio.open_nursery() as nursery:
        for name in (b"a", b"b", b"c"):
            nursery.start_soon(write, name)
    state = await state_of(feed)
    assert len(state) == 600
    assert all(key.startswith(value) for key, value in state.items())


@pytest.mark.parametrize("answers", ["never sent", "lost on the way"])
async def test_what_is_unanswered_when_the_connection_breaks_is_written_once(running, feed, answers, monkeypatch):
    """Blocks arrive, their answers don't; they are sent again, in order, and recognised."""
    node = running.node
    cuts = 0
    async with feed.writer(batch_rows=5, linger_s=0.0) as writer:
        for number in range(300):
            await writer.put(b"key %d" % (number % 40), b"%d" % number)
            if number % 60 == 30:
                cuts += 1
                await cut(node, answers, monkeypatch)
    assert cuts == 5
    rows = sum(last - first + 1 for first, last in await blocks_of(feed, node))
    assert rows == 300, "each row once"
    assert await state_of(feed) == {b"key %d" % (n % 40): b"%d" % n for n in range(260, 300)}


async def cut(node, answers, monkeypatch):
    """Breaks every connection once a block has been taken whose answer has not left, or was lost."""
    partitions = node.feeds.named("orders").partitions
    before = sum(p.high_seq for p in partitions)
    lost = []
    with monkeypatch.context() as patch:
        if answers == "lost on the way":
            patch.setattr(Connection, "send_answers", lambda self, last=b"": lost.append(self.answers.take() + last))
        while not lost and (answers == "lost on the way" or sum(p.high_seq for p in partitions) == before):
            await trio.lowlevel.checkpoint()
        for connection in list(node.connections):
            connection.transport.close()


async def test_a_writer_survives_a_restart_of_the_node(running, feed):
    async with feed.writer(batch_rows=5, linger_s=0.0) as writer:
        for number in range(50):
            await writer.put(b"key %d" % number, b"1")
        await running.kill()
        for number in range(50, 100):
            await writer.put(b"key %d" % number, b"2")
        await running.start()
        for number in range(100, 150):
            await writer.put(b"key %d" % number, b"3")
    assert len(await state_of(feed)) == 150
    assert sum(p.high_seq for p in running.node.feeds.named("orders").partitions) == 150


async def test_acknowledged_writes_that_the_node_has_lost_are_named(running, client, tmp_path):
    """Level memory: the node comes back without them. What was written after it is there all the same."""
    feed = await client.create_feed("single", partitions=1)
    with pytest.raises(tailrace.WritesLost) as caught:
        async with feed.writer(level="memory") as writer:
            await writer.put(b"kept", b"1")
            (kept,) = (await writer.flush()).values()
            running.copy_data(tmp_path / "copy")
            await writer.put(b"lost", b"2")
            (lost,) = (await writer.flush()).values()
            await running.stop()
            running.put_back(tmp_path / "copy")
            await running.start()
            await writer.put(b"after", b"3")
    assert caught.value.ranges == (lost,)
    assert "seqs 2 to 2 of partition 0" in str(caught.value)
    assert await state_of(feed) == {b"kept": b"1", b"after": b"3"}
    assert (await feed.get(b"kept")).version == tailrace.Version(0, kept.branch, 1)
    assert (await feed.get(b"after")).version.branch != kept.branch


async def test_a_single_write_after_a_loss_just_succeeds(running, client, tmp_path):
    feed = await client.create_feed("single", partitions=1)
    running.copy_data(tmp_path / "copy")
    for _ in range(3):
        await feed.put(b"lost", b"v", level="memory")
    await running.stop()
    running.put_back(tmp_path / "copy")
    await running.start()
    assert (await feed.put(b"k", b"v")).seq == 1
    assert await state_of(feed) == {b"k": b"v"}


async def test_an_error_of_the_body_does_not_wait(feed):
    """What was not sent yet is given up, and the body's exception comes at once."""
    with pytest.raises(KeyError):
        async with feed.writer(linger_s=3600.0) as writer:
            await writer.put(b"k", b"v")
            raise KeyError
    assert await state_of(feed) == {}


async def test_versions_of_a_flush_are_ranges(feed):
    async with feed.writer() as writer:
        await writer.put(b"k", b"v")
        assert all(isinstance(versions, VersionRange) for versions in (await writer.flush()).values())


@pytest.mark.parametrize("kind", ["writer", "stage"])
async def test_a_feed_that_was_made_again_fails_one_writer_at_most(running, feed, kind):
    """The handle has the id of the feed that was dropped; the first answer tells, and the next writer asks anew."""
    await feed.put(b"k", b"of the first feed")
    async with tailrace.connect(running.url) as other:
        await other.drop_feed("orders")
        await other.create_feed("orders", partitions=4)

    async def write():
        if kind == "writer":
            async with feed.writer() as writer:
                await writer.put(b"k", b"v")
        else:
            async with feed.stage() as stage:
                await stage.put(b"k", b"v")
                await feed.publish("sink", 0, [await stage.seal()])

    with pytest.raises(tailrace.UnknownFeed):
        await write()
    await write()
    assert await state_of(feed) == {b"k": b"v"}
