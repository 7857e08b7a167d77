"""Named consumers: the node keeps their positions, and the program that was started last owns the name."""

import datetime

import pytest
import trio
from tests.tailrace.trio.test_stream import read_all, read_until

import tailrace
from tailrace import Mutations, NotOwner, StreamEnded

ROWS = 40


async def fill(feed, count=ROWS, first=0):
    await feed.write([tailrace.Put(b"k%04d" % number, b"%d" % number) for number in range(first, first + count)])


async def read_rest(feed, name="reader", *, commits=True, **options):
    """The keys that a consumer of this name gets up to now. It commits after each event."""
    keys = []
    async with feed.consume(name=name, until="now", **options) as stream:
        async for event in stream:
            if isinstance(event, Mutations):
                keys += event.keys()
            if commits:
                await stream.commit()
    return sorted(keys)


def keys(count, first=0):
    return [b"k%04d" % number for number in range(first, first + count)]


async def stored(running, name="reader"):
    """The seqs that the node has stored, by partition, and the generations."""
    rows = running.node.feeds.consumers()
    [consumer] = [each for each in rows if each.name == name]
    owned = rows.of(consumer)
    return {p: each.position.seq for p, each in owned.items()}, {each.generation for each in owned.values()}


async def test_it_goes_on_behind_what_was_committed(running, feed):
    await fill(feed)
    assert await read_rest(feed) == keys(ROWS)
    await fill(feed, 5, first=ROWS)
    assert await read_rest(feed) == keys(5, ROWS)
    assert await read_rest(feed) == []
    seqs, generations = await stored(running)
    assert (sum(seqs.values()), generations) == (ROWS + 5, {3})


async def test_without_a_commit_all_comes_again(feed):
    await fill(feed)
    for _ in range(2):
        assert await read_rest(feed, commits=False) == keys(ROWS)


async def test_a_commit_covers_the_event_in_hand_and_no_later_one(feed):
    await fill(feed)
    first = []
    async with feed.consume(name="reader") as stream:
        async for event in stream:
            if isinstance(event, Mutations):
                first = event.keys()
                await stream.commit()
                break
    assert await read_rest(feed) == sorted(set(keys(ROWS)) - set(first))


async def test_a_commit_behind_the_loop(running, feed):
    await fill(feed)
    async with feed.consume(name="reader", until="now") as stream:
        assert len(await read_all(stream)) == ROWS
        assert stream.finished
        await stream.commit()
    seqs, _ = await stored(running)
    assert sum(seqs.values()) == ROWS


async def test_names_do_not_share_positions(feed):
    await fill(feed)
    assert await read_rest(feed, "one") == await read_rest(feed, "two") == keys(ROWS)


async def test_now_is_fixed_by_the_first_start_for_ever(feed):
    await fill(feed)
    async with feed.consume("now", name="reader"):
        pass
    await fill(feed, 5, first=ROWS)
    assert await read_rest(feed, since="now") == keys(5, ROWS)


async def test_given_positions_count_for_a_name_without_any(running, feed):
    await fill(feed)
    async with feed.consume(until="now") as stream:
        await read_until(stream, ROWS)
        given = stream.latest_positions
    await fill(feed, 5, first=ROWS)
    async with feed.consume(given, name="reader"):
        seqs, _ = await stored(running)
        assert seqs == given.seqs()  # before the first event
    assert await read_rest(feed, since=given) == keys(5, ROWS)
    assert await read_rest(feed, since=given) == []


async def test_positions_are_kept_by_a_restart_and_by_a_crash(running, feed):
    await fill(feed)
    assert await read_rest(feed) == keys(ROWS)
    await running.kill()
    await running.start()
    await fill(feed, 5, first=ROWS)
    assert await read_rest(feed) == keys(5, ROWS)


async def test_a_commit_survives_a_broken_connection(running, feed):
    await fill(feed)
    async with feed.consume(name="reader") as stream:
        await read_until(stream, ROWS)
        running.cut_connections()
        await stream.commit()
        seqs, generations = await stored(running)
        assert (sum(seqs.values()), generations) == (ROWS, {1})
        await fill(feed, 5, first=ROWS)
        assert len(await read_until(stream, 5)) == 5


async def test_a_commit_beside_a_loop_that_waits(running, feed):
    await fill(feed)
    async with feed.consume(name="reader") as stream, trio.open_nursery() as nursery:  # the loop ends before the stream
        seen = trio.Event()

        async def loop():
            count = 0
            async for event in stream:
                count += len(event) if isinstance(event, Mutations) else 0
                if count >= ROWS:
                    seen.set()

        nursery.start_soon(loop)
        await seen.wait()
        await stream.barrier()
        await stream.commit()
        seqs, _ = await stored(running)
        assert sum(seqs.values()) == ROWS
        nursery.cancel_scope.cancel()


async def test_the_program_that_was_started_last_owns_the_name(feed):
    await fill(feed)
    async with feed.consume(name="reader") as before:
        await read_until(before, ROWS)
        async with feed.consume(name="reader") as after:
            with pytest.raises(NotOwner, match="another program's now") as told:
                await before.commit()
            assert set(told.value.partitions) == {0, 1, 2, 3}
            with pytest.raises(NotOwner):
                async for _ in before:
                    pass
            assert len(await read_until(after, ROWS)) == ROWS
            await after.commit()
    assert await read_rest(feed) == []


async def test_one_that_lost_its_name_while_it_was_cut_off_does_not_take_it_back(running, feed):
    await fill(feed)
    async with feed.consume(name="reader") as before:
        await read_until(before, ROWS)
        running.cut_connections()
        async with feed.consume(name="reader") as after:
            with pytest.raises(NotOwner):
                await before.commit()
            await read_until(after, ROWS)
            await after.commit()


async def test_some_partitions(running, feed):
    await fill(feed)
    found = await read_rest(feed, partitions=[1, 3])
    seqs, _ = await stored(running)
    assert set(seqs) == {1, 3}
    assert sorted([*found, *await read_rest(feed)]) == keys(ROWS)


async def test_shares(running, feed):
    await fill(feed)
    found = [await read_rest(feed, f"{number}", partitions=f"{number}/3") for number in (1, 2, 3)]
    assert sorted(key for keys in found for key in keys) == keys(ROWS)
    assert all(found)
    assert set((await stored(running, "1"))[0]) == {0, 3}
    with pytest.raises(tailrace.UnknownFeed, match="has only 4"):
        async with feed.consume(partitions="5/5"):
            pass


@pytest.mark.parametrize("share", ["0/3", "4/3", "1", "a/b", "1/2/3", "-1/3", ""])
async def test_what_is_no_share(feed, share):
    with pytest.raises(ValueError, match="share such as"):
        feed.consume(partitions=share)


async def test_a_stream_without_a_name_stores_nothing(feed):
    async with feed.consume() as stream:
        with pytest.raises(tailrace.TailraceError, match="has no name"):
            await stream.commit()
    with pytest.raises(StreamEnded):
        await stream.commit()


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb", " a"])
async def test_names_that_cannot_be_shown_are_refused(feed, name):
    with pytest.raises(ValueError, match="name"):
        feed.consume(name=name)


async def test_a_dropped_feed_takes_its_consumers_along(running, client, feed):
    await fill(feed)
    await read_rest(feed)
    await client.drop_feed(feed.name)
    other = await client.create_feed("other", partitions=1)
    await read_rest(other, "second")
    assert [each.name for each in running.node.feeds.consumers()] == ["second"]


@pytest.mark.parametrize("asked", [{"name": "reader"}, {"group": "readers"}])
async def test_a_name_at_a_feed_that_there_is_not_is_refused_on_entering(client, asked):
    with pytest.raises(tailrace.UnknownFeed, match="there is no feed 'gone'"):
        async with client.feed("gone").consume(**asked):
            raise AssertionError("it was entered")


@pytest.mark.parametrize("partitions", [[7], "5/5"])
async def test_partitions_that_the_feed_does_not_have_are_refused_on_entering(feed, partitions):
    with pytest.raises(tailrace.UnknownFeed, match=r"has no partition 7|has only 4"):
        async with feed.consume(name="reader", partitions=partitions):
            raise AssertionError("it was entered")


# Starts that count for partitions without a position only


@pytest.mark.parametrize("kind", ["time", "last", "seqs"])
async def test_a_start_of_any_kind_counts_for_the_first_start_only(running, feed, kind):
    await fill(feed)
    seqs = {info.id: info.high_seq for info in await feed.partitions()}
    if kind == "time":
        since = datetime.datetime.now(datetime.UTC)
        while datetime.datetime.now(datetime.UTC) <= since:
            pass
        await fill(feed, 10, first=ROWS)
        expected = keys(10, ROWS)
    elif kind == "last":
        since, expected = "last:2", None
    else:
        since, expected = {0: seqs[0], 2: seqs[2] - 1}, None
    found = await read_rest(feed, since=since, commits=False)
    if kind == "last":
        assert len(found) == 2 * len(seqs)
    elif kind == "seqs":
        assert len(found) == 1 + seqs[1] + seqs[3]
    else:
        assert found == expected
    # The first position is stored, and a later start goes on there, whatever it says.
    assert await read_rest(feed, since="last:1", commits=False) == found
    assert await read_rest(feed, since=since) == found
    await fill(feed, 5, first=100)
    assert await read_rest(feed, since=since) == keys(5, 100)


async def test_a_partition_that_has_not_come_to_a_seq_ends_the_first_start(feed):
    await fill(feed)
    with pytest.raises(tailrace.BadPosition, match="since names seq 9999 of partition 1, which has come to"):
        await read_rest(feed, since={1: 9999})
    assert await read_rest(feed) == keys(ROWS)


async def test_a_group_begins_with_the_last_mutations(feed):
    await fill(feed)
    found = []
    async with feed.consume(group="workers", since="last:3") as stream:
        async for event in stream:
            found += event.keys() if isinstance(event, Mutations) else []
            await stream.commit()
            if len(found) == 12:
                break
    async with feed.consume(group="workers", since="last:3") as stream:
        await fill(feed, 1, first=ROWS)
        async for event in stream:
            if isinstance(event, Mutations):
                assert event.keys() == keys(1, ROWS)
                break
