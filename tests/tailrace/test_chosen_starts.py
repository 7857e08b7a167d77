"""Streams that begin at a seq of each partition, or with the last mutations."""

import pytest

from tailrace import BadPosition, DataGone, Mutations, Position, Put, Rollback, UnknownFeed
from tailrace.consuming.chosen_starts import start_of
from tailrace.consuming.subscription import ChosenStart
from tailrace.model.failover import FailoverLog
from tailrace.wire.stream_messages import ResumeAnswer, StreamOk

LOG = FailoverLog([(b"u" * 16, 1, 0)])


async def seqs_of(feed, **options):
    """The seqs of each partition that a stream up to now delivers, and the rollbacks."""
    seqs, rollbacks = {}, []
    async with feed.consume(until="now", **options) as stream:
        async for event in stream:
            if isinstance(event, Mutations):
                seqs.setdefault(event.partition, []).extend(event.seqs())
            elif isinstance(event, Rollback):
                rollbacks.append(event)
    return seqs, rollbacks


@pytest.fixture
async def single(client):
    """A history of one partition with ten mutations."""
    feed = await client.create_feed("single", partitions=1, retention="history")
    for number in range(10):
        await feed.put(b"k%d" % (number % 3), b"%d" % number)
    return feed


def partition_of(running, name="single"):
    return running.node.feeds.named(name).partitions[0]


@pytest.mark.parametrize(("last", "first"), [(0, 11), (1, 10), (4, 7), (10, 1), (100, 1)])
async def test_the_last_mutations(single, last, first):
    expected = {0: list(range(first, 11))} if first < 11 else {}
    assert await seqs_of(single, since=f"last:{last}") == (expected, [])


async def test_the_last_mutations_and_then_live(single):
    async with single.consume("last:2") as stream:
        seqs = []
        async for event in stream:
            if isinstance(event, Mutations):
                seqs += event.seqs()
                if seqs == [9, 10]:
                    await single.put(b"new", b"v")
                elif len(seqs) == 3:
                    break
        assert seqs == [9, 10, 11]
        positions = stream.positions
    assert await seqs_of(single, since=positions) == ({0: [11]}, [])


async def test_the_last_of_each_partition(feed):
    await feed.write([Put(b"k%d" % number, b"v") for number in range(100)])
    high = {info.id: info.high_seq for info in await feed.partitions()}
    found, _ = await seqs_of(feed, since="last:3")
    assert found == {id: [seq - 2, seq - 1, seq] for id, seq in high.items()}
    found, _ = await seqs_of(feed, since="last:3", partitions=[1])
    assert list(found) == [1]


async def test_the_last_ones_behind_what_was_trimmed_or_purged(running, single):
    """Trimmed rows are not asked for, and purged deletions end nothing."""
    partition_of(running).trim_seq = 8
    assert await seqs_of(single, since="last:5") == ({0: [9, 10]}, [])
    partition_of(running).trim_seq = 0
    partition_of(running).purge_seq = 9
    assert await seqs_of(single, since="last:5") == ({0: [6, 7, 8, 9, 10]}, [])


async def test_the_last_ones_by_segments(running, single):
    await running.node.storage.flusher.flush(partition_of(running))
    assert await seqs_of(single, since="last:4", catch_up="segments") == ({0: [7, 8, 9, 10]}, [])


async def test_seqs_of_partitions(feed):
    await feed.write([Put(b"k%d" % number, b"v") for number in range(100)])
    high = {info.id: info.high_seq for info in await feed.partitions()}
    found, rollbacks = await seqs_of(feed, since={0: 5, 1: high[1]})
    assert found == {0: list(range(6, high[0] + 1)), **{id: list(range(1, high[id] + 1)) for id in high if id > 1}}
    assert rollbacks == []
    async with feed.consume({0: 5}) as stream:
        assert stream.positions[0].seq == 5
        assert stream.positions[0].log == (await feed.partitions())[0].log
        assert set(stream.positions) == {0}, "the others have not begun"


async def test_seqs_whose_rows_are_gone(running, single):
    partition_of(running).trim_seq = 8
    with pytest.raises(DataGone, match="begin above seq 8"):
        await seqs_of(single, since={0: 5})
    partition_of(running).trim_seq = 0
    partition_of(running).purge_seq = 9
    assert await seqs_of(single, since={0: 5}) == ({0: list(range(1, 11))}, [Rollback(0, 0, None)])


async def test_starts_that_are_not_there(single):
    with pytest.raises(BadPosition, match="seq 11 of partition 0, which has come to seq 10 only"):
        await seqs_of(single, since={0: 11})
    with pytest.raises(BadPosition, match="names partition 3: the feed has 1, from 0 on"):
        await seqs_of(single, since={3: 1})
    with pytest.raises(UnknownFeed, match="no partition 7"):
        await seqs_of(single, since="last:3", partitions=[7])


@pytest.mark.parametrize(
    "since", ["last:", "last:-1", "last:many", "last:1.5", "last:99999999999999999999", "the last"]
)
async def test_words_that_are_none(single, since):
    with pytest.raises(ValueError, match="last:"):
        single.consume(since)


@pytest.mark.parametrize(("since", "kind"), [({0: -1}, ValueError), ({"0": 1}, TypeError), ({0: 1 << 63}, ValueError)])
async def test_seqs_that_are_none(single, since, kind):
    with pytest.raises(kind, match="since"):
        single.consume(since)


async def test_a_start_that_was_chosen_before_the_connection_broke(running, single):
    async with single.consume("last:2") as stream:
        running.cut_connections()
        seqs = []
        async for event in stream:
            if isinstance(event, Mutations):
                seqs += event.seqs()
            if len(seqs) == 2:
                break
    assert seqs == [9, 10], "also after another connection"


@pytest.mark.parametrize(
    ("start", "facts", "position"),
    [
        (ChosenStart(None, 3), (10, 10, 0, 0), Position.at(LOG, 7)),
        (ChosenStart(None, 3), (10, 8, 0, 0), Position.at(LOG, 5)),
        (ChosenStart(None, 30), (10, 10, 0, 4), Position.at(LOG, 4)),
        (ChosenStart(None, 3), (10, 10, 9, 0), Position.at(LOG, 7, purge_seq=9)),
        (ChosenStart(None, 30), (10, 10, 9, 0), Position.at(LOG, 0)),
        (ChosenStart({0: 4}, None), (10, 8, 9, 7), Position.at(LOG, 4)),
        (ChosenStart({1: 4}, None), (10, 8, 9, 7), Position.at(FailoverLog(), 0)),
    ],
)
def test_positions_of_a_start(start, facts, position):
    assert start_of(start, 0, ResumeAnswer(StreamOk(0, 0, LOG, 10), LOG, *facts)) == position
