"""The blocking consumer: the same events as under trio, over connections that break, and the ends."""

from __future__ import annotations

import itertools
import os
import time

import pytest
import trio
from tests.processes.program import Orders
from tests.tiers import first_in_test

import tailrace
from tailrace import Mutations, Positions, Put, SnapshotEnd, blocking
from tailrace.consuming.session import Subscription
from tailrace.link.placing import PLACED_BYTES_MIN

# An event that has not come by then does not come.
SECONDS_MAX = 60


def fill(feed, count, first=0):
    with feed.writer() as writer:
        for number in range(first, first + count):
            writer.put(b"%06d" % number, b"%d" % number)


def keys_in(events):
    return list(itertools.chain.from_iterable(event.keys() for event in events if isinstance(event, Mutations)))


def read(stream):
    """Keys by partition, in the order in which they came, and the last positions."""
    found = {}
    positions = None
    for event in stream:
        if isinstance(event, Mutations):
            found.setdefault(event.partition, []).extend(event.keys())
        positions = stream.latest_positions
    return found, positions


def keys_of(found):
    return sorted(key for keys in found.values() for key in keys)


def test_large_blocks_that_a_program_keeps_stay_as_they_came(client, feed):
    """They are received into buffers that are used again."""
    rows = {b"%03d" % number: os.urandom(5_000) for number in range(200)}
    with feed.writer() as writer:
        for _ in range(10):
            for key, value in rows.items():
                writer.put(key, value)
    with client.stream(Subscription(feed.name, until="now")) as stream:
        kept = [event for event in stream if isinstance(event, Mutations)]
    assert max(len(event.block.body) for event in kept) > PLACED_BYTES_MIN
    assert sum(map(len, kept)) == 2_000
    for event in kept:
        assert event.values() == list(map(rows.get, event.keys()))


def test_all_that_is_there_each_once(client, feed):
    fill(feed, 5000)
    with client.stream(Subscription(feed.name, until="now")) as stream:
        found, _ = read(stream)
        assert stream.finished
    assert keys_of(found) == [b"%06d" % number for number in range(5000)]
    assert set(found) == {0, 1, 2, 3}


def test_it_goes_on_from_stored_positions(client, feed):
    fill(feed, 1000)
    with client.stream(Subscription(feed.name, until="now")) as stream:
        _, positions = read(stream)
    fill(feed, 10, first=1000)
    stored = Positions.parse(str(positions))
    with client.stream(Subscription(feed.name, stored, "now", stored=(stored,))) as stream:
        found, _ = read(stream)
    assert keys_of(found) == [b"%06d" % number for number in range(1000, 1010)]


def test_live_events_and_nothing_in_between(client, feed):
    fill(feed, 1)
    with client.stream(Subscription(feed.name)) as stream:
        while not isinstance(stream.next(SECONDS_MAX), SnapshotEnd):
            pass
        while stream.next(0.05) is not None:
            pass
        assert not stream.finished
        feed.put(b"later", b"1")
        events = iter(lambda: stream.next(SECONDS_MAX), None)
        assert next(event for event in events if isinstance(event, Mutations)).keys() == [b"later"]
        assert all(partition.state in ("open", "in snapshot") for partition in stream.status().partitions)


async def test_broken_connections(running):
    """In the middle of a snapshot: what has come does not come again, and nothing is left out."""

    def consume():
        found, cuts = [], 0
        with blocking.connect(running.url) as client, client.stream(Subscription("orders", until="now"), 1) as stream:
            for event in stream:
                if isinstance(event, Mutations):
                    found += event.keys()
                    if len(found) > 200 * cuts and cuts < 4:
                        cuts += 1
                        trio.from_thread.run_sync(running.cut_connections)
        return found, cuts

    async with tailrace.connect(running.url) as client:
        feed = await client.create_feed("orders", partitions=1)
        for first in range(0, 1000, 50):
            await feed.write([Put(b"%06d" % number, b"v" * 1000) for number in range(first, first + 50)])
    found, cuts = await trio.to_thread.run_sync(consume)
    assert cuts == 4
    assert found == [b"%06d" % number for number in range(1000)]


def test_node_that_starts_again(node_process):
    with blocking.connect(node_process.url) as client:
        feed = client.create_feed("orders", partitions=1)
        fill(feed, 10)
        with client.stream(Subscription("orders")) as stream:
            while not isinstance(stream.next(SECONDS_MAX), SnapshotEnd):
                pass
            node_process.kill()
            node_process.start()
            feed.put(b"later", b"1")
            stream._agreed_at -= 3600  # nobody has asked for an event for an hour: that is no hour without a node
            events = iter(lambda: stream.next(SECONDS_MAX), None)
            assert next(event for event in events if isinstance(event, Mutations)).keys() == [b"later"]


def polled(stream, timeout):
    """The next mutations, in calls of ``timeout`` seconds each."""
    for _ in range(100_000):
        event = stream.next(timeout)
        if isinstance(event, Mutations):
            return event
        time.sleep(0.001)
    raise AssertionError("nothing has come")


@pytest.mark.parametrize("timeout", first_in_test([0, 0.001, 0.02], 1))
def test_short_calls_go_on_after_each_restart(node_process, timeout):
    with blocking.connect(node_process.url) as client:
        feed = client.create_feed("orders", partitions=1)
        with client.stream(Subscription("orders")) as stream:
            for number in range(3):
                node_process.kill()
                assert not isinstance(stream.next(timeout), Mutations)
                node_process.start()
                feed.put(b"%d" % number, b"v")
                assert polled(stream, timeout).keys() == [b"%d" % number]


def test_pauses_between_calls_are_no_time_without_a_node(node_process, monkeypatch):
    """A program that is at other things for an hour after each call has not tried for an hour."""
    with blocking.connect(node_process.url, retry_for=60) as client:
        feed = client.create_feed("orders", partitions=1)
        with client.stream(Subscription("orders")) as stream:
            node_process.kill()
            passed, now = 0.0, time.monotonic
            monkeypatch.setattr(time, "monotonic", lambda: now() + passed)
            for _ in range(10):
                assert stream.next(0.01) is None
                passed += 3600.0
            node_process.start()
            feed.put(b"k", b"v")
            assert polled(stream, 0.1).keys() == [b"k"]


@pytest.mark.parametrize("timeout", [0, 0.02, 60])
def test_silent_node_is_left_however_short_the_calls_are(start_node, bad_network, timeout):
    node = start_node(Orders(limits={"noop_interval_s": 0.2}))
    network = bad_network(node.port)
    network.cutting = False
    with blocking.connect(f"tailrace://127.0.0.1:{node.port}") as direct:
        feed = direct.create_feed("orders", partitions=1)
        with blocking.connect(network.url) as client, client.stream(Subscription("orders")) as stream:
            network.freeze()
            feed.put(b"k", b"v")
            connections = network.connections
            while network.connections == connections:
                assert stream.next(min(timeout, 2)) is None
            network.heal()
            assert polled(stream, timeout).keys() == [b"k"]


def test_unknown_feed(client):
    with pytest.raises(tailrace.UnknownFeed, match="nowhere"), client.stream(Subscription("nowhere")):
        pass


@pytest.mark.slow
def test_no_node():
    client = blocking.connect("tailrace://127.0.0.1:1", token=None, name=None, connect_timeout=1, retry_for=0.5)
    begin = time.monotonic()
    with (
        pytest.raises(tailrace.Unreachable, match=r"no stream within 0\.5 s: .*refused"),
        client.stream(Subscription("a")),
    ):
        pass
    assert time.monotonic() - begin < 60


def test_token_is_refused(secured_node):
    client = blocking.connect(secured_node.url, token="secret", name=None, connect_timeout=60, retry_for=60)
    with pytest.raises(tailrace.Forbidden), client.stream(Subscription("orders")):
        pass


def test_closed(client, feed):
    with client.stream(Subscription(feed.name)) as stream:
        pass
    with pytest.raises(tailrace.StreamEnded, match="closed"):
        next(stream)


def test_polls_bring_each_row_once_and_at_most_so_many(client, feed):
    fill(feed, 3000)
    keys, most = [], 0
    with client.stream(Subscription(feed.name, until="now")) as stream:
        while not stream.finished:
            events = stream.poll(max_rows=400, timeout=5)
            rows = keys_in(events)
            keys, most = keys + rows, max(most, len(rows))
        assert stream.poll() == []
        assert stream.next() is None
    assert sorted(keys) == [b"%06d" % number for number in range(3000)]
    assert most == 400


def test_a_poll_without_rows_returns_in_time(client, feed):
    with client.stream(Subscription(feed.name, "now")) as stream:
        assert stream.poll(timeout=0.01) == []
        with pytest.raises(ValueError, match="max_rows is 0"):
            stream.poll(max_rows=0)
        feed.put(b"k", b"v")
        while not (rows := [event for event in stream.poll(timeout=0) if isinstance(event, Mutations)]):
            pass
        assert rows[0].keys() == [b"k"]


def test_a_named_consumer_goes_on_behind_its_commit(client, feed):
    fill(feed, 500)
    with feed.consume(name="reader", until="now") as stream:
        for event in stream:
            stream.commit(timeout=60)
            if isinstance(event, Mutations):
                first = event.keys()
                break
    with feed.consume(name="reader", until="now") as stream:
        rest = keys_in(stream)
        stream.commit()
    assert sorted([*first, *rest]) == [b"%06d" % number for number in range(500)]
    with feed.consume(name="reader", until="now") as stream:
        assert keys_in(stream) == []


def test_a_name_that_another_program_has_taken(client, feed):
    fill(feed, 10)
    with feed.consume(name="reader") as before:
        next(before)
        with feed.consume(name="reader"):
            with pytest.raises(tailrace.NotOwner):
                before.commit()
            with pytest.raises(tailrace.NotOwner):
                list(before)


def test_a_close_while_other_threads_use_the_stream(client, feed, monkeypatch):
    """A thread that waits for a barrier drops it as soon as it is woken; a commit may be about to begin."""
    with client.stream(Subscription(feed.name)) as stream:
        core, lock = stream._core, stream._link.guard.lock
        barriers, held = [], []
        for _ in range(2):
            barriers.append(core.barrier(lambda: core.forget_barrier(barriers.pop(0))))
        close = core.close
        monkeypatch.setattr(core, "close", lambda: (held.append(lock._is_owned()), close()))
    assert (barriers, held) == ([], [True])
