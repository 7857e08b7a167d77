"""Any node of a set serves its segments, to copies and to consumers: a follower, too, even one that is behind."""

import trio
from tests.tailrace_server.replication.made_set import numbered, put

import tailrace
from tailrace import SegmentReader


def client_of(member, **options):
    return tailrace.connect(str(member.url), **options)


def copied(path):
    reader, found = SegmentReader(path), {}
    for partition in reader.partitions:
        for event in reader.mutations(partition):
            found.update(zip(event.keys(), event.values(), strict=True))
    return found


async def consumed(client):
    """The rows of a consumer that takes segments first."""
    found = {}
    async with client.feed("orders").consume(until="now", catch_up="segments") as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                found.update(zip(event.keys(), event.values(), strict=True))
    return found


async def test_each_member_serves_copies_and_consumers_while_rows_come(members, tmp_path):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        await put(feed, numbered(0, 300))
        await members.level("orders")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(put, feed, numbered(300, 300))
            for number, member in enumerate(members):
                async with client_of(member, state="any") as other:
                    await other.feed("orders").fetch(tmp_path / f"copy{number}")
                    assert (await consumed(other)).items() >= numbered(0, 300).items()
        for number in range(3):
            assert copied(tmp_path / f"copy{number}").items() >= numbered(0, 300).items()


async def test_a_follower_that_is_behind_changes_no_copy_until_it_is_level(members, tmp_path, hold_rows):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await put(feed, numbered(0, 100))
        await members.level("orders")
        late = members[2]
        held = hold_rows(late)
        await put(feed, numbered(100, 100))
        await feed.fetch(tmp_path / "copy")
        async with client_of(late, state="follower") as other:
            [behind] = (await other.feed("orders").fetch(tmp_path / "copy")).partitions.values()
            assert (behind.is_behind, behind.seq) == (True, 200)
            assert copied(tmp_path / "copy") == numbered(0, 200)
        held.release()
        await put(feed, numbered(200, 10))
        await members.level("orders")
        async with client_of(late, state="follower") as other:
            [healed] = (await other.feed("orders").fetch(tmp_path / "copy")).partitions.values()
        assert (healed.is_behind, healed.seq) == (False, 210)
        assert copied(tmp_path / "copy") == numbered(0, 210)


async def test_a_copy_follows_a_new_leader_that_has_no_segments_yet(members, tmp_path):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await put(feed, numbered(0, 100))
        await members.level("orders")
        await feed.fetch(tmp_path / "copy")
        await members[1].stop()
        await members[2].stop()
        await put(feed, numbered(100, 5), level="disk")  # lost by the failover, so no segment has them
        [before] = (await feed.fetch(tmp_path / "copy", visibility="disk")).partitions.values()
        assert before.seq == 100
    await members[0].kill()
    await members[1].start()
    await members[2].start()
    await members[1].promote()
    async with client_of(members[1]) as client:
        feed = client.feed("orders")
        [after] = (await feed.fetch(tmp_path / "copy")).partitions.values()
        assert (after.seq, after.is_behind, after.rolled_back_to) == (100, False, None)
        assert copied(tmp_path / "copy") == numbered(0, 100)
        await put(feed, numbered(500, 5))
        await feed.fetch(tmp_path / "copy")
        assert copied(tmp_path / "copy") == numbered(0, 100) | numbered(500, 5)
        assert await consumed(client) == numbered(0, 100) | numbered(500, 5)
