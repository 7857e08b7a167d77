"""What calls by the short way have begun, and nodes that do not answer them at once, for the tests of the shells."""

import contextlib
import threading
import time

import pytest
from tests.tailrace.waits import later

import tailrace
from tailrace.blocking.link import BlockingLink
from tailrace.requests.lone_calls import LoneLookUps, LoneWrites
from tailrace.trio import link as link_of_trio

VALUE = b"v" * 100
# Keys and values that no put takes, and the error that tells it.
WRONG_ROWS = (
    ("k", VALUE, TypeError),
    (b"", VALUE, ValueError),
    (b"k" * 5_000, VALUE, tailrace.TooLarge),
    (b"k", "v", TypeError),
    (b"k", None, TypeError),
)


def noted(monkeypatch):
    """For each look-up that has begun by the short way: whether that has had its answer."""
    found, begin, end = [], LoneLookUps.begin, LoneLookUps.end

    def noted_begin(self, *asked):
        frame = begin(self, *asked)
        if frame is not None:
            found.append(False)
        return frame

    def noted_end(self, *heard):
        items = end(self, *heard)
        found[-1] = items is not None
        return items

    monkeypatch.setattr(LoneLookUps, "begin", noted_begin)
    monkeypatch.setattr(LoneLookUps, "end", noted_end)
    return found


def noted_writes(monkeypatch):
    """For each put or deletion that has begun by the short way: whether that has had its answer."""
    found, begin, end = [], LoneWrites.begin, LoneWrites.end

    def noted_begin(self, *asked):
        row = begin(self, *asked)
        if row is not None:
            found.append(False)
        return row

    def noted_end(self, *heard):
        found[-1] = end(self, *heard)
        return found[-1]

    monkeypatch.setattr(LoneWrites, "begin", noted_begin)
    monkeypatch.setattr(LoneWrites, "end", noted_end)
    return found


@contextlib.contextmanager
def restarted(node_process, *, in_a_call):
    """Ends a node and starts it again: before the block, or while the first call of the block waits for it."""

    def restart():
        node_process.kill()
        node_process.start()

    if not in_a_call:
        restart()
        yield
        return
    node_process.pause()
    with later(restart):
        yield


@contextlib.contextmanager
def answers_late(node_process):
    """The node says nothing to the first call of the block until the general way waits for the answer."""
    node_process.pause()
    with later(node_process.proceed, [BlockingLink.run_until]):
        yield


def closed_in_a_call(node_process, client, lone, call):
    """Closes a client while a call waits in another thread. Returns the text of the call's error."""
    errors = []

    def wait():
        try:
            call()
        except tailrace.Unreachable as error:
            errors.append(str(error))

    with node_process.freeze():
        other = threading.Thread(target=wait)
        other.start()
        while not lone:
            time.sleep(0.001)
        client.close()
        other.join()
    return "".join(errors)


def is_lent(handle):
    """Whether the socket of the connection of a client for trio, or of a feed of its, is lent."""
    reader = handle._runner._link._transport.lending._reader
    return reader is not None and reader.is_lent


async def until_lent(feed):
    """Makes calls alone until the socket is lent. A tick while one of them waits counts them anew."""
    while not is_lent(feed):
        await feed.get(b"k")


@pytest.fixture
def rarely_ticks(monkeypatch):
    """No tick comes while a call waits under trio: the general way would take over, on a slow machine from many."""
    monkeypatch.setattr(link_of_trio, "tick_seconds", lambda until_deadline_s: 30.0)


@pytest.fixture
async def silent(running, warm):
    """The node answers nothing, until this is called: then it sends what it has kept back."""
    kept, transports = [], [connection.transport for connection in running.node.connections]
    for transport in transports:
        transport.send = lambda *data, send=transport.send: kept.append((send, data))

    def go_on():
        for transport in transports:
            del transport.send
        for send, data in kept:
            send(*data)

    return go_on
