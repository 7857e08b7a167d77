"""Partitions whose next rows are gone: each of them ends alone, or begins anew."""

import json
import sys
from pathlib import Path

import pytest
import trio

import tailrace
from tailrace import DataGone, EndReason, Mutations, Put, Rollback

TAILRACE = str(Path(sys.executable).with_name("tailrace"))
KEYS = [b"k%d" % number for number in range(40)]


@pytest.fixture
async def history(client):
    """A history of three partitions, and positions behind some of its rows."""
    feed = await client.create_feed("audits", partitions=3, retention="history")
    await feed.write([Put(key, b"1") for key in KEYS])
    async with feed.consume(until="now") as stream:
        async for _ in stream:
            pass
        positions = stream.positions
    await feed.write([Put(key, b"2") for key in KEYS])
    return feed, positions


def trim(running, partition):
    """Lets a partition forget its rows but the last one. Returns the seq up to which they are gone."""
    held = running.node.feeds.named("audits").partitions[partition]
    held.trim_seq = held.high_seq - 1
    return held.trim_seq


async def read(stream):
    """What a program has that goes on after each error: seqs of each partition, errors and rollbacks, in order."""
    seqs, errors, rollbacks = {}, [], []
    while not stream.finished:
        try:
            async for event in stream:
                if isinstance(event, Mutations):
                    seqs.setdefault(event.partition, []).extend(event.seqs())
                elif isinstance(event, Rollback):
                    rollbacks.append(event)
        except DataGone as error:
            errors.append(error)
    return seqs, errors, rollbacks


async def test_one_partition_ends_and_the_others_go_on(running, history):
    feed, positions = history
    gone = trim(running, 1)
    async with feed.consume(positions, until="now") as stream:
        seqs, [error], rollbacks = await read(stream)
        assert stream.positions[1] == positions[1], "it stands where it stood"
        status = stream.status().partitions[1]
    assert (error.partition, error.first_seq) == (1, gone + 1)
    assert sorted(seqs) == [0, 2]
    assert all(found[0] == positions[id].seq + 1 for id, found in seqs.items())
    assert rollbacks == []
    assert (status.state, status.last_end) == ("ended", EndReason.TRIMMED)


async def test_the_others_go_on_live(running, history):
    feed, positions = history
    trim(running, 1)
    async with feed.consume(positions) as stream:
        [connection] = [connection for connection in running.node.connections if connection.rounds.slots]
        with pytest.raises(DataGone, match="partition 1: the kept mutations begin above seq"):
            async for _ in stream:
                pass
        await feed.write([Put(key, b"3") for key in KEYS])
        seen = set()
        async for event in stream:
            if isinstance(event, Mutations) and b"3" in event.values():
                seen.add(event.partition)
            if len(seen) == 2:
                break
        assert seen == {0, 2}
        assert connection in running.node.connections
        assert len(connection.rounds.slots) == 2, "no connection was given up for it"


async def test_polls(running, history):
    feed, positions = history
    trim(running, 1)
    async with feed.consume(positions, until="now") as stream:
        events, errors = [], []
        while not stream.finished:
            try:
                events += await stream.poll(max_rows=7)
            except DataGone as error:
                errors.append(error.partition)
    assert errors == [1]
    assert {event.partition for event in events if isinstance(event, Mutations)} == {0, 2}


async def test_all_of_them_end_the_stream_on_entering(running, history):
    feed, positions = history
    for partition in range(3):
        trim(running, partition)
    with pytest.raises(DataGone):
        async with feed.consume(positions):
            pass
    with pytest.raises(DataGone) as caught:
        async with feed.consume(positions, partitions=[2]):
            pass
    assert caught.value.partition == 2


async def test_restart(running, history):
    """The partition comes again, as far as it is kept; also for a consumer that would stop at a rollback."""
    feed, positions = history
    gone = trim(running, 1)
    async with feed.consume(positions, until="now", on_data_gone="restart", on_rollback="stop") as stream:
        seqs, errors, rollbacks = await read(stream)
        assert stream.positions[1].seq == running.node.feeds.named("audits").partitions[1].high_seq
    assert errors == []
    assert rollbacks == [Rollback(1, 0, None)]
    assert sorted(seqs) == [0, 1, 2]
    assert seqs[1][-1] == gone + 1
    assert seqs[0][0] == positions[0].seq + 1


@pytest.mark.parametrize("word", ["follow", "", None])
async def test_words_that_are_none(feed, word):
    with pytest.raises(ValueError, match=r"on_data_gone is .*, but has to be 'raise' or 'restart'"):
        feed.consume(on_data_gone=word)


async def test_without_async(running, history):
    feed, positions = history
    trim(running, 1)

    def work():
        found, errors = set(), []
        with (
            tailrace.blocking.connect(running.url) as client,
            client.feed(feed.name).consume(positions, until="now") as stream,
        ):
            while not stream.finished:
                try:
                    found |= {event.partition for event in stream if isinstance(event, Mutations)}
                except DataGone as error:
                    errors.append(error.partition)
        return found, errors

    assert await trio.to_thread.run_sync(work) == ({0, 2}, [1])


@pytest.mark.slow
async def test_a_tail_ends_with_an_error_or_begins_the_partition_anew(running, history):
    _, positions = history
    gone = trim(running, 1)
    command = [TAILRACE, "tail", "audits", "--since", str(positions), "--until", "now", "--url", running.url, "--json"]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 1
    assert f"partition 1: the kept mutations begin above seq {gone}" in done.stderr.decode()
    command += ["--on-data-gone", "restart"]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    first, *others = [line for line in lines if line["partition"] == 1]
    assert first == {"rollback": True, "partition": 1, "seq": 0, "keys": None}
    assert others[-1]["seq"] == gone + 1
    assert not any("rollback" in line for line in lines if line["partition"] != 1)
