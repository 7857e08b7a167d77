"""Ctrl-C in the middle of blocking calls: while they wait for the node, and anywhere in the code of the SDK."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from tailrace import Put, blocking

IN_FLIGHT_BYTES = 20_000


@contextlib.contextmanager
def frozen(node):
    """The node answers nothing in this context."""
    os.kill(node.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.pid, signal.SIGCONT)


@contextlib.contextmanager
def interrupted(after_s):
    """KeyboardInterrupt in the body, which waits when it comes. It does not leave this context."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def client(node_process):
    with blocking.connect(node_process.url, retry_for=60) as client:
        yield client


@pytest.fixture
def feed(client):
    return client.create_feed("orders", partitions=4)


@pytest.mark.parametrize("kind", ["writer", "stage"])
def test_rows_of_earlier_calls_survive_an_interrupted_write(feed, node_process, contents, kind):
    """And what the node holds back in the meantime stays within the bound."""
    earlier = {b"early-%d" % number: [b"v"] for number in range(50)}
    make = feed.writer if kind == "writer" else feed.stage
    with make(in_flight_bytes=IN_FLIGHT_BYTES) as sender:
        for key in earlier:
            sender.put(key, b"v")
        with frozen(node_process):
            with interrupted(0.3):
                sender.write([Put(b"late-%d" % number, bytes(100)) for number in range(5_000)])
            with interrupted(0.1):
                while True:
                    sender.put(b"last", b"v")
        if kind == "stage":
            feed.publish("sink", 0, [sender.seal()])
    history = contents(node_process.url).history()
    assert {key: values for key, values in history.items() if key.startswith(b"early")} == earlier
    late = sum(len(key) + 100 for key in history if key.startswith(b"late"))
    assert 0 < late < IN_FLIGHT_BYTES, "values of zeros count as they are, not as they are compressed"


def test_a_writer_takes_no_more_than_its_bound_from_a_frozen_node(feed, node_process):
    count = 0
    writer = feed.writer(in_flight_bytes=IN_FLIGHT_BYTES)
    with frozen(node_process), interrupted(0.5):
        while True:
            writer.put(b"key-%d" % count, bytes(100))
            count += 1
    assert IN_FLIGHT_BYTES / 2 < count * 110 < IN_FLIGHT_BYTES + 1_000
    writer.flush()


def test_an_interrupted_call_is_not_carried_out_later(feed, client, node_process):
    feed.put(b"k", b"before")
    node_process.kill()
    for call in (
        lambda: feed.put(b"k", b"interrupted"),
        lambda: feed.write([Put(b"%d" % number, b"interrupted") for number in range(20)]),
        lambda: client.drop_feed("orders"),
    ):
        with interrupted(0.1):
            call()
    node_process.start()
    feed.put(b"other", b"after")
    assert feed.get(b"k").value == b"before"
    assert [item and item.value for item in feed.get_many([b"%d" % number for number in range(20)])] == [None] * 20


def test_a_writer_that_is_left_by_an_exception_sends_nothing_later(feed, node_process):
    feed.put(b"k", b"before")
    node_process.kill()

    def write():
        with feed.writer(batch_rows=1) as writer:
            writer.put(b"k", b"of the writer")
            raise KeyError

    with pytest.raises(KeyError):
        write()
    node_process.start()
    feed.put(b"other", b"after")
    assert feed.get(b"k").value == b"before"
