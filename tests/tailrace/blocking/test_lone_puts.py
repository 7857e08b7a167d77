"""A `put` or `delete` alone on its connection: which take the short way, and what becomes of the others."""

from __future__ import annotations

import contextlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.tailrace.lone_calls import VALUE, WRONG_ROWS, answers_late, closed_in_a_call, noted_writes, restarted
from tests.tailrace.waits import interrupted

import tailrace
from tailrace import blocking
from tailrace.blocking import link as link_module


@pytest.fixture
def lone(monkeypatch):
    monkeypatch.setattr(link_module, "LONE_SECONDS", 30.0)  # also on a slow machine
    return noted_writes(monkeypatch)


@pytest.fixture
def warm(feed, lone):
    """The feed, after calls that have made it ready for the short way."""
    feed.put(b"k", VALUE)
    lone.clear()
    return feed


def test_puts_and_deletions_take_the_short_way(warm, lone, monkeypatch):
    monkeypatch.setattr(link_module, "TICK_SECONDS", 30.0)
    before = warm.put(b"k", VALUE)
    for number in range(20):
        version = warm.put(b"k", b"%d" % number)
        assert version[:2] == before[:2]
        assert version.seq > before.seq
        assert warm.get(b"k").version == version
        before = warm.delete(b"k")
        assert before.seq == version.seq + 1
        assert warm.get(b"k") is None
        warm.put(b"other %d" % number, VALUE, level="memory")
        warm.put(b"long %d" % number, VALUE * 5)
        assert warm.get(b"long %d" % number).value == VALUE * 5
    assert lone.count(True) > 60 > len(lone) - 30, "a tick may come in between"


def test_unusual_writes_take_the_general_way(client, warm, lone, feed_name):
    version = warm.put(b"k", VALUE, timeout=10)
    version = warm.put(b"k", VALUE, if_version=version)
    warm.put(b"k", VALUE, ttl=1000)
    warm.put(b"absent", VALUE, if_absent=True)
    with pytest.raises(tailrace.VersionConflict):
        warm.delete(b"k", if_version=version)
    assert warm.delete_if_present(b"not there") is None
    client.feed(feed_name).put(b"k", VALUE)
    for key, value, error in WRONG_ROWS:
        with pytest.raises(error):
            warm.put(key, value)
    with pytest.raises(ValueError, match="level"):
        warm.put(b"k", VALUE, level="no level")
    with pytest.raises(TypeError):
        warm.put(b"k", VALUE, level=[])
    assert not lone
    warm.put(b"k", VALUE)
    assert len(lone) == 1


def test_an_error_of_the_node_is_that_of_the_general_way(client, warm, lone, feed_name):
    client.drop_feed(feed_name)
    with pytest.raises(tailrace.UnknownFeed):
        warm.put(b"k", VALUE)
    client.create_feed(feed_name, partitions=3)
    assert warm.put(b"k", VALUE)
    assert warm.get(b"k").value == VALUE


def test_an_answer_that_is_late(node_process, lone):
    with blocking.connect(node_process.url) as client:
        feed = client.create_feed("orders")
        for _ in range(3):
            feed.put(b"k", VALUE)
        lone.clear()
        with answers_late(node_process):
            version = feed.put(b"k", b"late")
        assert lone == [False]
        assert feed.get(b"k") == tailrace.Item(b"k", b"late", version, feed.get(b"k").timestamp)
        while not lone[-1]:
            feed.put(b"k", VALUE)


def test_a_node_that_does_not_answer_is_given_up(node_process, lone):
    with blocking.connect(node_process.url, retry_for=0.5) as client:
        feed = client.create_feed("orders", timeout=60)
        for _ in range(3):
            feed.put(b"k", VALUE, timeout=60)
        with node_process.freeze(), pytest.raises(tailrace.Unreachable, match="not answered in time") as caught:
            feed.put(b"k", VALUE)
        assert caught.value.outcome == "unknown"
        assert lone == [False]
        assert feed.put(b"k", b"later", timeout=60)
        assert feed.get(b"k", timeout=60).value == b"later"


def test_a_node_that_ends_and_comes_back(node_process, lone):
    """Each row is written once, also if the node ends while a call waits."""
    with blocking.connect(node_process.url, retry_for=60) as client:
        feed = client.create_feed("orders")
        count = 0
        for in_a_call in (False, True):
            for _ in range(3):
                feed.put(b"k", b"%d" % count)
                count += 1
            with restarted(node_process, in_a_call=in_a_call):
                version = feed.put(b"k", b"%d" % count)
                count += 1
                assert version.seq == count
                assert feed.get(b"k").value == b"%d" % (count - 1)
    assert False in lone


def test_threads_share_the_client(warm, lone):
    """Each sees its own writes in their order, whichever of them moves the bytes."""

    def use(name):
        last = 0
        for number in range(150):
            version = warm.put(name, b"%d" % number)
            assert version.seq > last
            last = version.seq
        assert warm.get(name).value == b"149"

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(use, [b"thread %d" % number for number in range(3)]))
    assert lone


def test_a_client_that_another_thread_closes(node_process, lone):
    client = blocking.connect(node_process.url).__enter__()
    feed = client.create_feed("orders")
    for _ in range(2):
        feed.put(b"k", VALUE)
    lone.clear()
    assert "closed" in closed_in_a_call(node_process, client, lone, lambda: feed.put(b"k", VALUE))


@pytest.mark.parametrize("taken", [0, 1, 100])
def test_a_socket_that_takes_a_part_of_the_frame(client, warm, lone, monkeypatch, taken):
    link = warm._runner._link
    send_frame = link_module.BlockingLink._send_frame

    class Slow:
        def send(self, frame):
            return link._sock.send(frame[:taken])

    full, unread = socket.socketpair()
    with full, unread:
        full.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                full.send(bytes(65_536))
        slow = Slow() if taken else full
        monkeypatch.setattr(
            link_module.BlockingLink, "_send_frame", lambda self, sock, frame: send_frame(self, slow, frame)
        )
        version = warm.put(b"k", b"slow")
    assert warm.get(b"k").version == version
    assert lone == [False]


def test_the_general_way_looks_around_now_and_then(warm, lone, monkeypatch):
    """It looks for a dead node and for a later leader, and sends NOOPs."""
    monkeypatch.setattr(link_module, "LONE_SECONDS", -1.0)
    assert warm.put(b"k", VALUE)
    assert not lone


def test_a_forked_process_uses_a_connection_of_its_own(warm):
    warm.put(b"k", VALUE)
    child = os.fork()
    if not child:
        warm.put(b"child", b"1")
        os._exit(0)
    os.waitpid(child, 0)
    warm.put(b"k", b"parent")
    assert [item.value for item in warm.get_many([b"k", b"child"])] == [b"parent", b"1"]


class Interrupt(Exception):
    """From a handler of signals."""


def test_an_interrupt_while_it_waits(node_process, lone):
    """The row may be written; the client goes on."""
    with blocking.connect(node_process.url) as client:
        feed = client.create_feed("orders")
        for _ in range(2):
            feed.put(b"k", VALUE)
        lone.clear()
        with node_process.freeze(), interrupted(Interrupt):
            feed.put(b"k", b"interrupted")
        assert lone == [False]
        for number in range(5):
            version = feed.put(b"k", b"%d" % number)
            assert feed.get(b"k") == tailrace.Item(b"k", b"%d" % number, version, feed.get(b"k").timestamp)
        assert True in lone
