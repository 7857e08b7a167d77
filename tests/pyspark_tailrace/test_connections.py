from __future__ import annotations

import time

import pytest
from tests.processes.program import Orders

import tailrace
from pyspark_tailrace import connections
from pyspark_tailrace.connections import cached_writer
from pyspark_tailrace.options import sink_options

pytestmark = pytest.mark.usefixtures("no_connections")


def options_of(node, feed, **options):
    return sink_options({"url": node.url, "feed": feed, "create_feed": "true", "retry_for": "60"} | options)


def test_next_task_has_the_same_writer(shared_node, feed_name):
    options = options_of(shared_node, feed_name)
    with cached_writer(options) as (feed, first):
        assert feed.resolve().partitions == 16
    with cached_writer(options_of(shared_node, feed_name)) as (_, second):
        assert second is first
    with cached_writer(options_of(shared_node, feed_name, order_by="a")) as (_, third):
        assert third is not first


def test_writer_that_has_failed_is_closed(shared_node, feed_name):
    options = options_of(shared_node, feed_name)
    with pytest.raises(RuntimeError), cached_writer(options) as (_, first):
        raise RuntimeError
    with pytest.raises(tailrace.Unreachable, match="was closed"):
        first.flush()
    with cached_writer(options) as (_, second):
        second.put(b"k", b"v")
        second.flush()


def test_two_tasks_at_a_time_have_their_own(shared_node, feed_name):
    options = options_of(shared_node, feed_name)
    with cached_writer(options) as (_, first), cached_writer(options) as (_, second):
        assert first is not second
        for writer in (first, second):
            writer.put(b"k", b"v")
            writer.flush()
    assert len(connections._connections) == 1
    with cached_writer(options) as (_, third):
        third.put(b"k", b"v")
        third.flush()


def test_cached_connections_are_bounded(start_node, monkeypatch):
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 2)
    node = start_node()
    writers = {}
    for number in (0, 1, 0, 2):
        with cached_writer(options_of(node, f"feed-{number}")) as (_, writers[number]):
            pass
    assert [options.feed for _, options in connections._connections] == ["feed-0", "feed-2"]
    with pytest.raises(tailrace.Unreachable, match="was closed"):
        writers[1].flush()
    writers[0].flush()


def test_process_that_was_forked_makes_a_connection_of_its_own(shared_node, feed_name, monkeypatch):
    options = options_of(shared_node, feed_name)
    with cached_writer(options) as (_, first):
        pass
    monkeypatch.setattr("os.getpid", lambda: -1)
    with cached_writer(options) as (_, second):
        assert second is not first


def test_connection_that_the_node_has_dropped_is_made_again(start_node, contents):
    node = start_node(Orders(limits={"noop_interval_s": 0.1}))
    for number in range(2):
        with cached_writer(options_of(node, "orders")) as (_, writer):
            writer.put(b"k", b"%d" % number)
            writer.flush()
        time.sleep(1.2)
    found = contents(node.url)
    assert found.history() == {b"k": [b"0", b"1"]}
    assert len({block.header.producer_id for block in found.blocks}) == 1


def written(node, feed, value, **options):
    """One task writes; gives how many partitions the feed has."""
    with cached_writer(options_of(node, feed, **options)) as (found, writer):
        for number in range(20):  # to several partitions
            writer.put(b"%d" % number, value)
        writer.flush()
        return found.resolve().partitions


def history_of(value):
    return {b"%d" % number: [value] for number in range(20)}


def test_feed_that_was_dropped_and_made_again(shared_node, feed_name, contents):
    assert written(shared_node, feed_name, b"1") == 16
    with tailrace.blocking.connect(shared_node.url) as client:
        client.drop_feed(feed_name)
        client.create_feed(feed_name, partitions=3)
        assert written(shared_node, feed_name, b"2") == 3
        assert contents(shared_node.url, feed_name).history() == history_of(b"2")
        client.drop_feed(feed_name)
    assert written(shared_node, feed_name, b"3") == 16
    assert contents(shared_node.url, feed_name).history() == history_of(b"3")


def test_partitions_of_a_feed_that_was_made_again_are_checked(shared_node, feed_name):
    assert written(shared_node, feed_name, b"1", partitions="4") == 4
    with tailrace.blocking.connect(shared_node.url) as client:
        client.drop_feed(feed_name)
        client.create_feed(feed_name, partitions=3)
    with pytest.raises(ValueError, match="has 3 partitions, and option 'partitions' says 4"):
        written(shared_node, feed_name, b"2", partitions="4")


def test_feed_that_was_dropped_is_not_made_unless_the_job_says_so(shared_node, feed_name):
    with tailrace.blocking.connect(shared_node.url) as client:
        client.create_feed(feed_name)
        written(shared_node, feed_name, b"1", create_feed="false")
        client.drop_feed(feed_name)
    with pytest.raises(tailrace.UnknownFeed, match=r"\.option\('create_feed', 'true'\)"):
        written(shared_node, feed_name, b"2", create_feed="false")
    assert not connections._connections


def test_another_node_at_the_same_address(start_node, tmp_path, contents):
    node = start_node()
    assert written(node, "orders", b"1") == 16
    node.stop()
    node.data = str(tmp_path / "fresh")
    node.start()
    with tailrace.blocking.connect(node.url) as client:
        client.create_feed("orders", partitions=3)
    assert written(node, "orders", b"2") == 3
    assert contents(node.url).history() == history_of(b"2")


def test_feed_that_is_not_there(shared_node, feed_name):
    options = options_of(shared_node, feed_name, create_feed="false")
    text = rf"there is no feed '{feed_name}'.*\.option\('create_feed', 'true'\)"
    with pytest.raises(tailrace.UnknownFeed, match=text), cached_writer(options):
        pass
    assert not connections._connections


def test_feed_is_created_with_the_partitions_asked_for(shared_node, feed_name):
    with cached_writer(options_of(shared_node, feed_name, partitions="3")) as (feed, _):
        assert feed.resolve().partitions == 3
    for create_feed in ("true", "false"):
        with cached_writer(options_of(shared_node, feed_name, create_feed=create_feed)) as (feed, _):
            assert feed.resolve().partitions == 3
        options = options_of(shared_node, feed_name, create_feed=create_feed, partitions="4")
        with (
            pytest.raises(ValueError, match=r"has 3 partitions, and option 'partitions' says 4"),
            cached_writer(options),
        ):
            pass


def test_nobody_there(start_node):
    node = start_node()
    options = options_of(node, "orders", retry_for="0.3")
    node.stop()
    with pytest.raises(tailrace.Unreachable, match=r"no node at .* within 0\.3 s: .*refused"), cached_writer(options):
        pass


def test_token(secured_node, feed_name):
    options = options_of(secured_node, feed_name, token="secret")
    with pytest.raises(tailrace.Forbidden, match="token"), cached_writer(options):
        pass
