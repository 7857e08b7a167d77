"""A `get` alone on its connection: which calls take the short way, and what becomes of those that it does not end."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.tailrace.lone_calls import VALUE, answers_late, closed_in_a_call, noted, restarted

import tailrace
from tailrace import blocking
from tailrace.blocking import link as link_module


@pytest.fixture
def lone(monkeypatch):
    monkeypatch.setattr(link_module, "LONE_SECONDS", 30.0)  # also on a slow machine
    return noted(monkeypatch)


@pytest.fixture
def warm(feed, lone):
    """The feed, after calls that have made it ready for the short way."""
    feed.put(b"k", VALUE)
    feed.get(b"k")
    lone.clear()
    return feed


def test_gets_take_the_short_way(warm, lone, monkeypatch):
    monkeypatch.setattr(link_module, "TICK_SECONDS", 30.0)
    version = warm.get(b"k").version
    for number in range(20):
        assert warm.get(b"k").value == VALUE
        assert warm.get(b"another") is None
        assert warm.get(b"k", level="memory").version == version
        warm.put(b"%d" % number, b"%d" % number)
        assert warm.get(b"%d" % number).value == b"%d" % number
    assert lone.count(True) >= len(lone) - 1 > 60, "a tick may come in between"


@pytest.mark.parametrize("kind", ["timeout", "at least", "of another feed"])
def test_unusual_gets_take_the_general_way(client, warm, lone, feed_name, kind):
    version = warm.get(b"k").version
    lone.clear()
    if kind == "timeout":
        found = warm.get(b"k", timeout=10)
    elif kind == "at least":
        found = warm.get(b"k", at_least=version)
    else:
        found = client.feed(feed_name).get(b"k")
    assert found.value == VALUE
    assert not lone


@pytest.mark.parametrize(("key", "error"), [("k", TypeError), (b"", ValueError), (b"k" * 5_000, tailrace.TooLarge)])
def test_wrong_keys_are_refused(warm, lone, key, error):
    with pytest.raises(error):
        warm.get(key)
    with pytest.raises(ValueError, match="level"):
        warm.get(b"k", level="no level")
    assert not lone
    assert warm.get(b"k").value == VALUE


def test_a_long_value_comes_in_several_reads(warm, lone):
    value = os.urandom(1_000_000)
    warm.put(b"long", value)
    for _ in range(5):
        assert warm.get(b"long").value == value
        assert warm.get(b"k").value == VALUE
    assert {True, False} == set(lone)


def test_an_error_of_the_node_is_that_of_the_general_way(client, warm, feed_name):
    client.drop_feed(feed_name)
    with pytest.raises(tailrace.UnknownFeed):
        warm.get(b"k")
    client.create_feed(feed_name, partitions=2)
    assert warm.get(b"k") is None


def test_an_answer_that_is_late(node_process, lone):
    with blocking.connect(node_process.url) as client:
        feed = client.create_feed("orders")
        feed.put(b"k", VALUE)
        for _ in range(3):
            feed.get(b"k")
        lone.clear()
        with answers_late(node_process):
            assert feed.get(b"k").value == VALUE
        assert lone == [False]
        for _ in range(3):
            assert feed.get(b"k").value == VALUE


def test_a_node_that_does_not_answer_is_given_up(node_process):
    with blocking.connect(node_process.url, retry_for=0.5) as client:
        feed = client.create_feed("orders", timeout=60)
        feed.put(b"k", VALUE, timeout=60)
        feed.get(b"k", timeout=60)
        with node_process.freeze(), pytest.raises(tailrace.Unreachable, match="not answered in time"):
            feed.get(b"k")
        assert feed.get(b"k", timeout=60).value == VALUE


def test_a_node_that_ends_and_comes_back(node_process):
    with blocking.connect(node_process.url, retry_for=60) as client:
        feed = client.create_feed("orders")
        feed.put(b"k", VALUE)
        for in_a_call in (False, True):
            for _ in range(3):
                feed.get(b"k")
            with restarted(node_process, in_a_call=in_a_call):
                assert feed.get(b"k").value == VALUE


def test_threads_share_the_client(warm, lone):
    """Each sees its own writes, whichever of them moves the bytes."""

    def use(name):
        for number in range(150):
            warm.put(name, b"%d" % number)
            assert warm.get(name).value == b"%d" % number

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(use, [b"thread %d" % number for number in range(3)]))
    assert lone


def test_another_thread_is_served_after_a_look_up_alone(node_process, lone):
    """It has queued its request while the look-up waited, and is the next to read."""
    with blocking.connect(node_process.url) as client:
        feed = client.create_feed("orders")
        feed.put(b"k", VALUE)
        feed.get(b"k")
        node_process.pause()
        found = []
        threads = [threading.Thread(target=lambda: found.append(feed.get(b"k", timeout=60))) for _ in range(3)]
        first = threading.Thread(target=lambda: found.append(feed.get(b"k")))
        first.start()
        while not lone:
            time.sleep(0.001)
        for thread in threads:
            thread.start()
        node_process.proceed()
        for thread in (first, *threads):
            thread.join()
    assert [item.value for item in found] == [VALUE] * 4


def test_a_client_that_another_thread_closes(node_process, lone):
    client = blocking.connect(node_process.url).__enter__()
    feed = client.create_feed("orders")
    feed.put(b"k", VALUE)
    feed.get(b"k")
    lone.clear()
    assert "closed" in closed_in_a_call(node_process, client, lone, lambda: feed.get(b"k"))


def test_the_general_way_looks_around_now_and_then(warm, lone, monkeypatch):
    """It looks for a dead node and for a later leader, and sends NOOPs."""
    monkeypatch.setattr(link_module, "LONE_SECONDS", -1.0)
    assert warm.get(b"k").value == VALUE
    assert not lone


def test_a_forked_process_uses_a_connection_of_its_own(warm):
    warm.get(b"k")
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        os.write(write_end, warm.get(b"k").value)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        assert pipe.read() == VALUE
    os.waitpid(child, 0)
    assert warm.get(b"k").value == VALUE
