"""Clients of sets of nodes: over promotions, handovers and crashes, and from nodes that follow."""

import contextlib

import pytest
import trio
from tests.tailrace_server.replication.made_set import MadeNode, free_addresses, make_config, until

import tailrace
from tailrace import blocking
from tailrace.consuming.events import Mutations
from tailrace.errors import NotLeader
from tailrace.link.address import Address
from tailrace.trio.listener import listen_tcp
from tailrace.wire.messages import PROTOCOL_VERSION, HelloOk


async def test_a_client_that_names_only_followers(members):
    leader = await members.settled()
    names = ",".join(str(node.address) for node in members if node is not leader)
    async with tailrace.connect(f"tailrace://{names}") as client:
        feed = await client.create_feed("orders", partitions=2)
        version = await feed.put(b"k", b"v", level="quorum")
        assert (await feed.get(b"k", at_least=version, level="quorum")).value == b"v"


async def test_a_writer_and_a_stream_over_a_handover_and_a_crash(members):
    seen = {}
    done = trio.Event()
    async with members.client() as client, trio.open_nursery() as nursery:
        feed = await client.create_feed("orders", partitions=2)

        async def read():
            async with feed.consume() as stream:
                async for event in stream:
                    if isinstance(event, Mutations):
                        seen.update((row.key, row.value) for row in event)
                    if len(seen) >= 300:
                        break
            done.set()

        nursery.start_soon(read)
        count = 0

        async def write(many):
            nonlocal count
            for _ in range(many):
                await feed.put(b"%d" % count, b"v", level="quorum")
                count += 1

        await write(100)
        leader = await members.level("orders")
        to = next(node for node in members if node is not leader)

        async def hand_over():
            await leader.hand_over(to)

        nursery.start_soon(hand_over)
        await write(100)
        await until(lambda: to.leads)
        await members.level("orders")
        third = next(node for node in members if node not in (leader, to))

        async def crash():
            await to.kill()
            await third.promote()

        nursery.start_soon(crash)
        await write(100)
        await done.wait()
    assert sorted(seen) == sorted(b"%d" % number for number in range(300))


async def test_a_follower_is_read_from(members):
    leader = await members.settled()
    impatient = members.client(state="follower", retry_for=2)
    async with members.client() as client, members.client(state="follower") as reader, impatient:
        feed = await client.create_feed("orders", partitions=2)
        await members.level("orders")
        version = await feed.put(b"k", b"v", level="quorum")
        there = reader.feed("orders")
        assert (await there.get(b"k", at_least=version)).value == b"v"
        async with there.consume() as stream:
            got = trio.Event()

            async def read():
                async for event in stream:
                    if isinstance(event, Mutations) and any(row.key == b"l" for row in event):
                        got.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await feed.put(b"l", b"w")
                await stream.barrier()
                assert got.is_set()
                nursery.cancel_scope.cancel()
        found = [item.key async for item in there.items()]
        assert sorted(found) == [b"k", b"l"]
        positions = await there.explain_resume(stream.positions)
        assert len(positions) == 2
        with pytest.raises(NotLeader):
            await impatient.feed("orders").put(b"m", b"x")
    assert leader.leads


async def test_a_reader_of_followers_moves_on_when_its_node_begins_to_lead(members):
    leader = await members.settled()
    async with members.client() as client, members.client(state="follower") as reader:
        feed = await client.create_feed("orders", partitions=1)
        await feed.put(b"k", b"v", level="quorum")
        await members.level("orders")
        there = reader.feed("orders")
        seen = []
        async with there.consume() as stream, trio.open_nursery() as nursery:

            async def read():
                async for event in stream:
                    if isinstance(event, Mutations):
                        seen.extend(event.keys())

            nursery.start_soon(read)
            await until(lambda: seen == [b"k"])
            first = next(node for node in members if node is not leader and node.node.connections)
            await leader.hand_over(first)
            await feed.put(b"l", b"w", level="quorum")
            await until(lambda: seen == [b"k", b"l"])
            assert (await there.get(b"k")).value == b"v"
            nursery.cancel_scope.cancel()


async def test_a_reader_of_any_node_reads_on_as_its_node_changes_its_role(members):
    leader = await members.settled()
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        version = await feed.put(b"k", b"v", level="quorum")
        await members.level("orders")
        to = next(node for node in members if node is not leader)
        async with tailrace.connect(leader.url, state="any") as first, tailrace.connect(to.url, state="any") as second:
            readers = [reader.feed("orders") for reader in (first, second)]
            for reader in readers:
                assert (await reader.get(b"k", at_least=version)).value == b"v"
            await leader.hand_over(to)
            version = await feed.put(b"k", b"w", level="quorum")
            for reader in readers:
                assert (await reader.get(b"k", at_least=version)).value == b"w"


async def test_a_blocking_reader_of_any_node_reads_on_as_its_node_changes_its_role(members):
    leader = await members.settled()
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await feed.put(b"k", b"v", level="quorum")
        await members.level("orders")
    to = next(node for node in members if node is not leader)
    reader = await trio.to_thread.run_sync(lambda: blocking.connect(to.url, state="any").__enter__())
    try:
        assert (await trio.to_thread.run_sync(reader.feed("orders").get, b"k")).value == b"v"
        await leader.hand_over(to)
        assert (await trio.to_thread.run_sync(reader.feed("orders").get, b"k")).value == b"v"
    finally:
        await trio.to_thread.run_sync(lambda: reader.__exit__(None, None, None))


async def test_without_async(members):
    leader = await members.settled()
    async with members.client() as client:
        await client.create_feed("orders", partitions=2)
        await members.level("orders")
    follower = next(node for node in members if node is not leader)

    def work():
        with blocking.connect(follower.url) as client, blocking.connect(members.url, state="follower") as reader:
            version = client.feed("orders").put(b"k", b"v", level="quorum")
            return reader.feed("orders").get(b"k", at_least=version).value

    assert await trio.to_thread.run_sync(work) == b"v"


async def test_status_is_that_of_the_node_that_was_named(members):
    for node in members:
        async with tailrace.connect(node.url, state="any") as client:
            assert (await client.status()).node_id == node.node.identity.node_id


async def test_a_pipelined_writer_over_a_crash_writes_each_row_once(members):
    """What has no answer is sent to the next leader, which knows what it has already."""
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        leader = await members.level("orders")
        others = [node for node in members if node is not leader]
        async with trio.open_nursery() as nursery:

            async def crash():
                await until(lambda: leader.seqs("orders") >= [300])
                await leader.kill()
                await others[0].promote()

            nursery.start_soon(crash)
            async with feed.writer(level="quorum", batch_rows=5) as writer:
                for number in range(1000):
                    await writer.put(b"%d" % number, b"v")
        seen = []
        async with feed.consume(until="now") as stream:
            async for event in stream:
                if isinstance(event, Mutations):
                    seen.extend(event.keys())
        assert await members.settled() is others[0]
    assert sorted(seen) == sorted(b"%d" % number for number in range(1000))


async def test_a_writer_over_two_handovers(members):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        await members.level("orders")
        written = 0

        async with trio.open_nursery() as nursery:
            stop = False

            async def write():
                nonlocal written
                async with feed.writer(level="disk", batch_rows=5) as writer:
                    while not stop:
                        await writer.put(b"%d" % written, b"v")
                        written += 1
                        if written % 50 == 0:
                            await writer.flush()

            nursery.start_soon(write)
            for _ in range(2):
                leader = await members.settled()
                to = next(node for node in members if node is not leader)
                await until(lambda: written % 100 > 50)
                await leader.hand_over(to)
                wanted = written + 100
                await until(lambda wanted=wanted: written > wanted)
            stop = True
        seen = []
        async with feed.consume(until="now") as stream:
            async for event in stream:
                if isinstance(event, Mutations):
                    seen.extend(event.keys())
    assert len(seen) == written
    assert set(seen) == {b"%d" % number for number in range(written)}


async def test_a_plain_follower_without_a_vote(tmp_path, nursery, running):
    """A node that stands alone, one that follows it, and a client that names the second only."""
    [address] = free_addresses(1)
    replica_of = Address(*running.config.listen)
    node = MadeNode(make_config(tmp_path / "replica", address, replica_of=replica_of), nursery)
    await node.start()
    async with tailrace.connect(node.url) as client, tailrace.connect(node.url, state="follower") as reader:
        feed = await client.create_feed("orders", partitions=2)
        version = await feed.put(b"k", b"v")
        await until(lambda: node.seqs("orders") is not None)
        assert (await reader.feed("orders").get(b"k", at_least=version)).value == b"v"
        assert running.node.feeds.named("orders").partitions[version.partition].high_seq == version.seq
        await running.stop()
        await node.promote(force=True)
        await feed.put(b"k", b"w")
        assert (await feed.get(b"k")).value == b"w"
    await node.stop()


@pytest.fixture
async def cut_off(members):
    """A set with a later leader, and before it in the URL what one is that was cut off: it leads, and answers nothing.

    Gives the URL, and how many connections have come to that one.
    """
    leader = await members.settled()
    await next(node for node in members if node is not leader).promote()
    leader = await members.settled()
    cluster_id = leader.node.identity.cluster_id.hex()
    listener = await listen_tcp("127.0.0.1", 0)
    came = []

    async def say_hello(transport):
        came.append(transport)
        await transport.receive()
        levels = ("memory", "disk", "quorum")
        peer = HelloOk(PROTOCOL_VERSION, "0" * 32, cluster_id, "", 1 << 20, 10.0, levels, role="leader", term=1)
        transport.send(peer.encode())
        with contextlib.suppress(OSError):
            while await transport.receive():
                pass
        transport.close()

    async with trio.open_nursery() as serving:
        serving.start_soon(listener.serve, say_hello)
        yield members.url.replace("://", "://{}:{},".format(*listener.address)), came
        serving.cancel_scope.cancel()
    await listener.aclose()


async def test_a_leader_that_was_cut_off_is_left_for_the_later_one(cut_off):
    url, came = cut_off
    async with tailrace.connect(url, retry_for=60) as client:
        feed = await client.create_feed("orders", partitions=2)
        await feed.put(b"k", b"v", level="quorum")
        async with feed.consume() as stream, trio.open_nursery() as nursery:

            async def read():
                async for _ in stream:
                    pass

            nursery.start_soon(read)
            await stream.barrier()
            nursery.cancel_scope.cancel()
    assert came, "it was asked first"


async def test_one_that_comes_to_lead_while_a_client_waits_is_found(cut_off, members):
    """Nobody else could be reached as the client came."""
    url, came = cut_off
    leader = members.leader
    for node in members:
        await node.stop()
    async with tailrace.connect(url, retry_for=60) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.create_feed, "orders")
        await until(lambda: came)
        await members.start()
        await members.settled()
        await until(lambda: all(node.seqs("orders") is not None for node in members))
    assert leader.leads


async def test_a_leader_that_was_cut_off_is_left_without_async(cut_off):
    url, came = cut_off

    def work():
        with blocking.connect(url, retry_for=60) as client:
            feed = client.create_feed("orders", partitions=2)
            feed.put(b"k", b"v", level="quorum")
            return feed.get(b"k", level="quorum").value

    assert await trio.to_thread.run_sync(work) == b"v"
    assert came, "it was asked first"
