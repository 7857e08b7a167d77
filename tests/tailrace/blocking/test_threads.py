"""A blocking client that threads share, with its writers, stages and streams."""

from __future__ import annotations

import _weakrefset
import contextlib
import itertools
import os
import signal
import threading
import weakref
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import junkdrawer

from tailrace import Put, blocking
from tailrace.consuming.subscription import Subscription
from tailrace.errors import StreamEnded, TailraceError, Unreachable
from tailrace.model import Level
from tailrace.model.hashing import key_hash, partition_of_hash

# What has not ended by then hangs.
SECONDS_MAX = 120
PARTITIONS = 3
KEYS = [b"key %d" % number for number in range(7)]


class Thread(threading.Thread):
    """Keeps what its work returns or raises."""

    def __init__(self, work, *arguments):
        super().__init__(daemon=True)
        self._work = lambda: work(*arguments)
        self.result = self.error = None

    def run(self):
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error

    def ended(self):
        """Waits for the end, and raises what the work raised."""
        self.join(SECONDS_MAX)
        assert not self.is_alive(), "the thread hangs"
        if self.error is not None:
            raise self.error
        return self.result


def started(*works):
    threads = [Thread(*work) if isinstance(work, tuple) else Thread(work) for work in works]
    for thread in threads:
        thread.start()
    return threads


def test_each_thread_gets_its_own_answers(client, feed):
    def work(number):
        for turn in range(40):
            key, value = b"%d-%d" % (number, turn), b"v%d" % (number * 1_000 + turn)
            version = feed.put(key, value, level="memory")
            item = feed.get(key, level="memory")
            assert (item.value, item.version) == (value, version)
            assert [found.name for found in client.feeds()].count(feed.name) == 1

    for thread in started(*((work, number) for number in range(6))):
        thread.ended()


def test_calls_of_threads_are_under_way_together(node_process):
    """The time-out of one is not that of another, and none waits for another one's end."""
    with blocking.connect(node_process.url) as client:
        feed = client.create_feed("orders", partitions=1)
        feed.put(b"k", b"v")
        with node_process.freeze():
            waiting = started(lambda: feed.get(b"k", timeout=60), lambda: feed.get(b"k", timeout=60))
            for _ in range(3):
                with pytest.raises(Unreachable):
                    feed.get(b"k", timeout=0.1)
            assert all(thread.is_alive() for thread in waiting)
        assert [thread.ended().value for thread in waiting] == [b"v", b"v"]


@pytest.mark.parametrize("connected", [True, False])
def test_closing_ends_the_waits_of_all_threads(node_process, connected):
    client = blocking.connect(node_process.url, retry_for=600)
    with client:
        feed = client.create_feed("orders", partitions=4)
        writer = feed.writer(in_flight_bytes=1_000, batch_rows=1)
        stage = feed.stage(in_flight_bytes=1_000, batch_rows=1)
        rows = [Put(b"%d" % number, bytes(100)) for number in range(100)]
        with contextlib.ExitStack() as stack:
            if connected:
                stack.enter_context(node_process.freeze())
            else:
                node_process.kill()
            calls = [lambda: feed.get(b"k"), client.feeds, lambda: writer.write(rows), lambda: stage.write(rows)]
            threads = started(*calls, *calls)
            for thread in threads:
                thread.join(0.05)
            client.close()
            for thread in threads:
                with pytest.raises(Unreachable, match="closed"):
                    thread.ended()
    with pytest.raises(Unreachable, match="closed"):
        client.feeds()


def test_one_thread_reads_a_stream_and_any_closes_it(client, feed):
    wanted = Subscription(feed.name, "beginning", None, None, Level.DISK, "follow")
    with client.stream(wanted) as stream:
        for _ in range(2 * 4 + 1):  # both ends of four empty snapshots, and of the round
            stream.next(0.2)
        [reader] = started((next, stream))
        while not reader.error and not stream._reader:
            reader.join(0.01)
        with pytest.raises(TailraceError, match="another thread reads this stream"):
            stream.next(0)
        assert stream.status()
        stream.close()
        with pytest.raises(StreamEnded, match="closed"):
            reader.ended()


def test_a_fork_while_another_thread_waits(node_process):
    """The child has no thread that would release the parent's locks."""
    with blocking.connect(node_process.url) as client:
        feed = client.create_feed("orders", partitions=1)
        feed.put(b"k", b"v")
        stop = threading.Event()

        def work():
            while not stop.is_set():
                assert feed.get(b"k").value == b"v"

        threads = started(work, work)
        for _ in range(20):
            pid = os.fork()
            if not pid:
                code = 1
                with contextlib.suppress(BaseException):
                    signal.alarm(SECONDS_MAX)
                    code = 0 if feed.get(b"k").value == b"v" else 2
                    client.close()
                os._exit(code)
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.ended()


# The property


class Op(NamedTuple):
    """What a thread does, with ``rows`` rows: "put", "write", "flush" with a time-out, or "single" calls beside."""

    name: str
    rows: int


class Trial:
    """Runs threads on one writer or stage, and keeps what they were told."""

    def __init__(self, feed, sender, kind):
        self.feed = feed
        self.sender = sender
        self.kind = kind
        # Thread and rows of each call, in order, and whether it has returned. An interrupt may come between two steps:
        # it is noted before the call begins, and in one step when it has returned.
        self.calls = []
        self.counts = itertools.count()

    def run(self, thread, ops):
        for op in ops:
            getattr(self, op.name)(thread, op.rows)

    def row(self, thread):
        count = next(self.counts)
        return KEYS[count * 5 % len(KEYS)], b"%d %06d %s" % (thread, count, b"x" * (count % 50))

    def put(self, thread, rows):
        for _ in range(rows):
            row = self.row(thread)
            self._try(thread, [row], lambda row=row: self.sender.put(*row))

    def write(self, thread, rows):
        made = [self.row(thread) for _ in range(rows)]
        self._try(thread, made, lambda: self.sender.write([Put(*row) for row in made]))

    def flush(self, thread, rows):
        if self.kind == "writer":
            with contextlib.suppress(Unreachable):
                self.sender.flush(timeout=0 if rows % 2 else 60)

    def single(self, thread, rows):
        value = b"%d" % rows
        self.feed.put(b"single %d" % thread, value, level="memory")
        assert self.feed.get(b"single %d" % thread, level="memory").value == value

    def _try(self, thread, rows, call):
        noted = [thread, rows, False]
        self.calls.append(noted)
        call()
        noted[2] = True

    def check(self, received, *, whole):
        """Each row came once, those of a thread in order; ``whole``: all that were accepted came."""
        values = [value for _, value in received]
        assert len(set(values)) == len(values), "a row has come twice"
        accepted_of, parts = {}, {}  # rows of calls that have returned, by thread and partition; and of the others
        for thread, rows, has_returned in self.calls:
            if not has_returned:
                parts.setdefault(thread, set()).update(rows)
            for row in rows if has_returned else ():
                partition = partition_of_hash(key_hash(row[0]), PARTITIONS)
                accepted_of.setdefault((thread, partition), []).append(row)
        for (thread, partition), accepted in accepted_of.items():
            mine = [row for row in received if row[1].startswith(b"%d " % thread)]
            mine = [row for row in mine if partition_of_hash(key_hash(row[0]), PARTITIONS) == partition]
            assert mine == sorted(mine, key=lambda row: row[1][:8]), "the order of a thread's rows is not kept"
            sure = [row for row in mine if row not in parts.get(thread, ())]
            assert sure == accepted if whole else sure == accepted[: len(sure)]


# Files with callbacks of weak references and of the collector, in which Python ignores an exception, and warns of it.
# Hypothesis registers a callback of the collector. Python also ignores them in __del__, which nurseries of trio have.
CALLBACK_FILES = {_weakrefset.__file__, weakref.__file__, junkdrawer.__file__}


@contextlib.contextmanager
def interrupted(after_s):
    """KeyboardInterrupt in the body, if that takes longer than ``after_s``, None: never. It does not leave this."""

    def interrupt(_, frame):
        if frame is not None and (frame.f_code.co_filename in CALLBACK_FILES or frame.f_code.co_name == "__del__"):
            signal.setitimer(signal.ITIMER_REAL, 0.0001)  # Python would swallow it there: it comes a moment later
        else:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        if after_s is not None:
            signal.setitimer(signal.ITIMER_REAL, after_s)
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


ops = st.builds(Op, st.sampled_from(["put", "put", "write", "write", "flush", "single"]), st.integers(1, 40))
scripts = st.lists(st.lists(ops, max_size=6), min_size=2, max_size=4)
endings = st.sampled_from(["wait", "wait", "wait", "close", "fail"])
names = itertools.count()


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    scripts,
    st.sampled_from(["writer", "stage"]),
    st.sampled_from([1, 300, 5_000, 1_000_000]),
    st.sampled_from([1, 3, 1_000]),
    st.none() | st.sampled_from([0.0005, 0.002, 0.01, 0.05]),
    endings,
)
def test_rows_of_threads_come_once_and_in_order(
    shared_node, contents, feed_name, scripts, kind, bytes_max, rows, interrupt_s, ending
):
    """Threads with time-outs, a KeyboardInterrupt in the main one, and the client closed while others write."""
    name = f"{feed_name}-{next(names)}"
    with blocking.connect(shared_node.url) as client:
        feed = client.create_feed(name, partitions=PARTITIONS)
        sender = (feed.writer if kind == "writer" else feed.stage)(batch_rows=rows, in_flight_bytes=bytes_max)
        trial = Trial(feed, sender, kind)
        threads = started(*((trial.run, number, script) for number, script in enumerate(scripts[1:], 1)))
        with interrupted(interrupt_s), contextlib.suppress(TailraceError):
            trial.run(0, scripts[0])
        if ending == "close":
            client.close()
        elif ending == "fail" and kind == "writer":
            sender.__exit__(KeyError, KeyError(), None)
        errors = []
        for thread in threads:
            try:
                thread.ended()
            except (TailraceError, ValueError) as error:
                errors.append(error)
        try:
            if kind == "writer":
                sender.flush(timeout=60)
            else:
                sealed = sender.seal()
                feed.publish("sink", 0, [sealed])
        except TailraceError as error:
            errors.append(error)
        if ending == "wait":
            assert [error for error in errors if "interrupted" not in str(error)] == []
            assert not errors or interrupt_s is not None
    rows_there = [(row.key, row.value) for row in contents(shared_node.url, name).rows]
    rows_there = [row for row in rows_there if not row[0].startswith(b"single")]
    if rows_there or not errors:
        trial.check(rows_there, whole=not errors)
