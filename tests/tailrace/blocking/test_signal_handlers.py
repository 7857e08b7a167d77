"""Handlers of signals that come within a call: those that call the client, and those that raise an error."""

from __future__ import annotations

import errno
import os
import socket
from functools import partial

import pytest
from tests.tailrace.interrupts import TRIALS, Calls, TimedOut, at_each_line, time_out
from tests.tailrace.waits import handled

import tailrace
from tailrace import blocking
from tailrace.blocking.guard import raise_foreign

every_line = pytest.mark.parametrize("trials", [TRIALS, pytest.param(None, marks=pytest.mark.long)])


def no_file():
    os.stat("/no/such/file")


def would_block():
    raise BlockingIOError("of a handler")


def run_some(calls, feed, writer):
    """Calls of each kind."""
    for _ in range(7):
        calls.put(writer)
    calls.write(writer)
    for _ in range(2):
        calls.put(feed)
    calls.write(feed)
    calls.attempt(feed.get, b"1")
    calls.attempt(feed.get, b"1")
    calls.attempt(feed.get_many, [b"1", b"2"])
    calls.put(writer)
    calls.attempt(writer.flush)


@every_line
@pytest.mark.parametrize("handler", [time_out, no_file, would_block])
def test_an_error_of_a_handler_is_no_error_of_the_connection(shared_node, contents, feed_name, handler, trials):
    """It reaches the program; no accepted row is lost, or a later call says that the client was interrupted."""
    with blocking.connect(shared_node.url) as client:
        client.create_feed(feed_name, partitions=1)
    calls, failures = Calls(TimedOut, FileNotFoundError, BlockingIOError), set()

    def run(interrupt):
        before, calls.failure, calls.interrupts = len(calls.added), "", 0
        with blocking.connect(shared_node.url) as client:
            feed = client.feed(feed_name)
            writer = feed.writer(batch_rows=3)
            with interrupt:
                run_some(calls, feed, writer)
            calls.put(writer)
            calls.attempt(writer.flush)
            assert not calls.failure or "interrupted" in calls.failure
            if calls.failure:  # rows that were not flushed may be lost: the program knows
                del calls.added[before:]
            assert client._core.session.connections == 1
        failures.add(bool(calls.failure))
        assert calls.interrupts == (interrupt.left <= 0)

    at_each_line(run, trials, handler)
    calls.check(contents(shared_node.url, feed_name).rows)
    assert failures == {False, True}, "both ends are reached"


@every_line
def test_a_handler_that_calls_the_client_within_a_call_is_refused(shared_node, contents, feed_name, trials):
    """The call that it has come to goes on, and so does the client."""
    with blocking.connect(shared_node.url) as client:
        client.create_feed(feed_name, partitions=1)
    calls, errors = Calls(), set()

    def run(interrupt):
        with blocking.connect(shared_node.url) as client:
            feed = client.feed(feed_name)
            writer = feed.writer(batch_rows=3)
            within.use(feed, writer)
            with interrupt:
                run_some(calls, feed, writer)
            calls.put(writer)
            writer.flush()
            calls.put(feed)
        assert not calls.failure
        assert not calls.interrupts

    class Handler:
        def use(self, feed, writer):
            self._feed, self._writer = feed, writer

        def __call__(self):
            feed, writer = self._feed, self._writer
            row = b"of the handler", b"v"
            for call in (lambda: writer.put(*row), lambda: feed.put(*row), lambda: feed.get(b"1"), writer.flush):
                try:
                    call()
                except RuntimeError as error:
                    errors.add(str(error))
                else:
                    errors.add("")

    within = Handler()
    at_each_line(run, trials, within)
    found = [row for row in contents(shared_node.url, feed_name).rows if not row.key.startswith(b"of the handler")]
    calls.check(found)
    assert len(errors) == 2
    assert "flag" in max(errors)


def test_a_handler_that_calls_the_client_within_a_wait_is_refused(shared_node, feed_name):
    """It is refused in the stream that waits, which goes on, and not in the client."""
    found = []

    def handler(*_):
        for call in (lambda: stream.next(0.0), lambda: stream.poll(timeout=0.0), stream.close):
            with pytest.raises(RuntimeError, match="flag"):
                call()
        found.append(feed.get(b"k"))
        feed.put(b"k", b"v")

    with blocking.connect(shared_node.url) as client:
        feed = client.create_feed(feed_name, partitions=1)
        with feed.consume() as stream:
            assert stream.poll(timeout=0.5) == []
            with handled(handler):
                assert stream.next(60.0) is not None
    assert found == [None], "the stream was in a call, and the client was not"


def raised(call):
    """The error of a call that code of the client makes, as its ``except`` has it."""
    of_client = {"__name__": "tailrace.made", "call": call}
    exec("try:\n    call()\nexcept Exception as error:\n    found = error", of_client)
    return of_client["found"]


def test_errors_of_the_system_and_of_the_client_are_not_foreign():
    def of_handler(error):
        raise error

    sock = socket.socket()
    sock.close()
    raise_foreign(raised(partial(sock.recv, 1)))
    raise_foreign(raised(partial(socket.create_connection, ("127.0.0.1", 1), 0.1)))
    raise_foreign(tailrace.Unreachable("not foreign"))
    for error in (
        TimeoutError("of a handler"),
        BrokenPipeError(errno.EPIPE, "of its socket"),
        tailrace.Unreachable(""),
    ):
        with pytest.raises(type(error)):
            raise_foreign(raised(partial(of_handler, error)))
