"""The blocking follower: an index equal to its feed, by a thread, through restarts, rollbacks, errors and forks."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import threading

import pytest
from tests.picky_index import PickyIndex
from tests.tailrace.blocking.test_threads import started

import tailrace
from tailrace import Put, StreamEnded, UnknownFeed, WrongProcess, blocking
from tailrace.indexes import MemoryIndex, SQLiteIndex
from tailrace.indexes.by_feed import table_of

ROWS = {b"%05d" % number: b"%d" % number for number in range(2000)}


def fill(feed, rows=ROWS):
    with feed.writer() as writer:
        for key, value in rows.items():
            writer.put(key, value)


def state(feed):
    return {item.key: item.value for item in feed.items()}


def test_an_index_equals_the_feed_at_each_barrier(feed):
    fill(feed)
    index = MemoryIndex()
    with feed.follow(index) as follower:
        follower.barrier()
        assert index.state == ROWS == state(feed)
        version = feed.put(b"later", b"1")
        follower.wait_for(version, timeout=60)
        assert index.state[b"later"] == b"1"
        feed.delete(b"later")
        follower.barrier(timeout=60)
        assert index.state == ROWS
        assert set(follower.lag.values()) == {0}
        assert follower.positions.seqs() == {p.partition: p.seq for p in follower.status().partitions}
        assert follower.applied_rows >= len(ROWS)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tailrace index")]


def test_it_goes_on_from_the_stored_positions(feed, tmp_path):
    fill(feed)
    with feed.follow(SQLiteIndex(tmp_path / "index.db")) as follower:
        follower.barrier()
    feed.put(b"later", b"1")
    with feed.follow(SQLiteIndex(tmp_path / "index.db")) as follower:
        follower.barrier()
        assert follower.applied_rows == 1


def test_several_feeds_into_one_index(client, feed, tmp_path):
    index, second = (
        SQLiteIndex(tmp_path / "shop.db", table="{feed}"),
        client.create_feed(f"{feed.name}-2", partitions=2),
    )
    feed.put(b"k", b"first")
    second.put(b"k", b"second")
    with feed.follow(index) as of_first, second.follow(index) as of_second:
        of_first.barrier()
        of_second.barrier()
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        tables = [table_of("{feed}", name) for name in (feed.name, second.name)]
        found = [database.execute(f"SELECT value FROM {table}").fetchall() for table in tables]
    assert found == [[(b"first",)], [(b"second",)]]


def test_it_goes_on_through_a_restart_of_the_node(node_process):
    index = MemoryIndex()
    with blocking.connect(node_process.url) as client:
        feed = client.create_feed("orders", partitions=4)
        with feed.follow(index) as follower:
            for number in range(3):
                feed.put(b"k", b"%d" % number, level="disk")
                node_process.kill()
                node_process.start()
                follower.barrier(timeout=120)
                assert index.state == {b"k": b"%d" % number}


def test_lost_writes_are_taken_back(node_process, tmp_path):
    """An operator puts an earlier copy of the directory back: the index goes back with the node."""
    index = MemoryIndex()
    with blocking.connect(node_process.url) as client:
        feed = client.create_feed("orders", partitions=1)
        feed.put(b"k", b"kept", level="disk")
        with feed.follow(index) as follower:
            node_process.kill()
            shutil.copytree(node_process.data, tmp_path / "copy")
            node_process.start()
            feed.put(b"k", b"lost", level="disk")
            feed.put(b"other", b"lost", level="disk")
            follower.barrier(timeout=120)
            assert index.state == {b"k": b"lost", b"other": b"lost"}
            node_process.kill()
            shutil.rmtree(node_process.data)
            (tmp_path / "copy").rename(node_process.data)
            node_process.start()
            follower.barrier(timeout=120)
            assert index.state == {b"k": b"kept"}


class Failing(MemoryIndex):
    """Raises with the row "bad"."""

    def apply(self, mutations, checkpoint):
        if any(mutation.value == b"bad" for mutation in mutations):
            raise ArithmeticError("no such value")
        super().apply(mutations, checkpoint)


def fail(feed, error=None):
    """Follows with an index that fails, and raises ``error`` in the body."""
    with feed.follow(Failing()) as follower:
        version = feed.put(b"k", b"bad")
        with pytest.raises(StreamEnded):
            follower.wait_for(version, timeout=60)
        with pytest.raises(StreamEnded, match="no such value"):
            follower.barrier()
        if error is not None:
            raise error


def test_an_error_of_the_index_ends_the_follower_and_is_raised_on_leaving(feed):
    with pytest.raises(ArithmeticError, match="no such value"):
        fail(feed)


def test_the_error_of_the_body_goes_first(feed):
    with pytest.raises(KeyError):
        fail(feed, KeyError())


class Slow(MemoryIndex):
    """Waits in its first transaction until it is told to go on."""

    def __init__(self):
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def apply(self, mutations, checkpoint):
        self.begun.set()
        assert self.go_on.wait(60)
        super().apply(mutations, checkpoint)


def test_waits_end_in_time_and_the_index_goes_on(feed):
    index = Slow()
    with feed.follow(index) as follower:
        version = feed.put(b"k", b"v")
        assert index.begun.wait(60)
        with pytest.raises(TimeoutError):
            follower.wait_for(version, timeout=0.01)
        with pytest.raises(TimeoutError):
            follower.barrier(timeout=0.01)
        with pytest.raises(ValueError, match="timeout is -1"):
            follower.barrier(timeout=-1)
        index.go_on.set()
        follower.wait_for(version)
        assert index.state == {b"k": b"v"}


def test_leaving_waits_for_the_transaction_under_way(feed):
    index = Slow()
    with feed.follow(index):
        feed.put(b"k", b"v")
        assert index.begun.wait(60)
        index.go_on.set()
    assert index.state == {b"k": b"v"}


def test_many_threads_wait_for_their_writes(feed):
    index = MemoryIndex()
    with feed.follow(index) as follower:

        def work(name):
            for number in range(30):
                key = b"%s %d" % (name, number)
                follower.wait_for(feed.put(key, b"v"), timeout=60)
                assert index.state[key] == b"v"
            follower.barrier(timeout=60)

        for thread in started(*((work, b"%d" % number) for number in range(4))):
            thread.ended()
    assert len(index.state) == 120


def test_what_cannot_be_followed_is_told_on_entering(client, feed):
    index = MemoryIndex()
    with pytest.raises(UnknownFeed), client.feed("nothing").follow(index):
        pass
    follower = feed.follow(index)
    with follower, pytest.raises(ValueError, match="is followed already"), feed.follow(index):
        pass
    with pytest.raises(RuntimeError, match="was entered before"), follower:
        pass
    with feed.follow(index) as again:
        again.barrier()


def test_a_forked_process_is_told_and_leaves_the_parents_follower_alone(feed):
    index = MemoryIndex()
    with feed.follow(index) as follower:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                follower.barrier()
            except WrongProcess:
                follower.__exit__(None, None, None)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        feed.put(b"k", b"v")
        follower.barrier(timeout=60)
        assert index.state == {b"k": b"v"}


# The other calls that follow a feed


def test_items_are_the_latest_state(feed):
    fill(feed)
    feed.delete(b"00007")
    feed.write([Put(b"00008", b"new")])
    wanted = {**ROWS, b"00008": b"new"}
    del wanted[b"00007"]
    assert state(feed) == wanted
    assert {item.key for item in feed.items(key_prefix=b"0000")} == {key for key in wanted if key.startswith(b"0000")}
    with pytest.raises(ValueError, match="prefix"):
        feed.items(key_prefix=bytes(100_000))


def test_items_of_a_feed_that_is_not_there(client):
    with pytest.raises(UnknownFeed):
        next(client.feed("nothing").items())


def test_consume_has_the_options_of_the_other_client(feed):
    fill(feed)
    seen = []
    with feed.consume(key_prefix=b"0001", keys_only=True, caught_up=True) as stream:
        for event in stream:
            if isinstance(event, tailrace.CaughtUp):
                break
            if isinstance(event, tailrace.Mutations):
                seen += event.keys()
        positions = stream.latest_positions
    assert sorted(seen) == [key for key in ROWS if key.startswith(b"0001")]
    explained = feed.explain_resume(positions)
    assert {each.outcome for each in explained.values()} == {tailrace.Outcome.GOES_ON}
    with pytest.raises(ValueError, match="on_rollback is 'never'"):
        feed.consume(on_rollback="never")


def test_a_barrier_of_another_thread_returns_when_the_loop_has_come_so_far(feed):
    with feed.consume() as stream:
        seen, stop = set(), threading.Event()

        def loop():
            while not stop.is_set():
                event = stream.next(0.05)
                if isinstance(event, tailrace.Mutations):
                    seen.update(event.keys())

        [thread] = started(loop)
        for number in range(50):
            key = b"%d" % number
            feed.put(key, b"v")
            stream.barrier(timeout=60)
            assert key in seen
        stop.set()
        thread.ended()
        with pytest.raises(TimeoutError, match="has not come to the barrier"):
            stream.barrier(timeout=0.01)
        stream.next(0)
        with pytest.raises(RuntimeError, match="call it from another thread"):
            stream.barrier()
    with pytest.raises(StreamEnded):
        stream.barrier()


def test_import_tailrace_gives_the_blocking_client():
    assert tailrace.blocking is blocking
    assert tailrace.blocking.Follower is blocking.follower.Follower


def test_bad_rows_are_parked(feed, client):
    class Picky(MemoryIndex):
        def apply(self, mutations, checkpoint):
            if b"bad" in [row.value for row in mutations]:
                raise ValueError("cannot take it")
            super().apply(mutations, checkpoint)

    index = Picky()
    feed.write([tailrace.Put(b"a", b"good"), tailrace.Put(b"b", b"bad"), tailrace.Put(b"c", b"good")])
    with feed.follow(index, on_error="park") as follower:
        follower.barrier(timeout=60)
        assert (follower.parked_rows, index.state.keys()) == (1, {b"a", b"c"})
    [item] = client.feed(f"{feed.name}.parked").items()
    assert tailrace.indexes.ParkedRow.parse(item.key, item.value).reason == "ValueError: cannot take it"


def test_parked_rows_are_replayed(feed):
    index = PickyIndex()
    for key, value in ((b"a", b"good"), (b"b", b"bad"), (b"c", b"bad"), (b"d", b"good")):
        feed.put(key, value)
    feed.delete(b"d")
    with feed.follow(index, on_error="park") as follower:
        follower.barrier()
        assert follower.parked_rows == 3
    feed.put(b"c", b"mended")
    index.is_mended = True
    assert feed.replay_parked() == (2, 1)
    assert feed.replay_parked() == (0, 0)
    with feed.follow(index, on_error="park") as follower:
        follower.barrier()
        assert follower.parked_rows == 0
    assert index.state == {b"a": b"good", b"b": b"bad", b"c": b"mended"}


def test_without_parked_rows_there_is_nothing_to_replay(feed):
    with pytest.raises(UnknownFeed, match=r"\.parked"):
        feed.replay_parked()
