"""Ctrl-C in the middle of blocking calls: while they wait for the node, and anywhere in the code of the SDK."""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import threading

import pytest
from tests.tailrace.interrupts import NEVER, SignalAt
from tests.tailrace.waits import interrupted

import tailrace
from tailrace import Put, blocking
from tailrace.blocking.link import BlockingLink
from tailrace.requests.senders import WriterCore

# Interrupts that are tried, evenly over all lines of the SDK that a few calls run.
TRIALS = 60
# The same while another thread uses the client.
TRIALS_BESIDE = 25
SECONDS_MAX = 120
# Lines of the SDK that a put runs before it waits for a connection, and some of that wait.
LINES_OF_A_PUT = 150
IN_FLIGHT_BYTES = 20_000


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
        with node_process.freeze():
            with interrupted():
                sender.write([Put(b"late-%d" % number, bytes(100)) for number in range(5_000)])
            with interrupted():
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
    with node_process.freeze(), interrupted():
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
        with interrupted():
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


def write_some(sender, feed, accepted, single):
    """Rows by each call; what has returned goes to ``accepted`` and ``single``."""
    for number in range(9):
        value = b"%d" % len(accepted)
        sender.put(b"k%d" % (number % 2), value)
        accepted.append(value)
    sender.write([Put(b"k", b"%d" % (100 + number)) for number in range(4)])
    accepted += [b"%d" % (100 + number) for number in range(4)]
    feed.put(b"single", b"1")
    single.append(b"1")


@pytest.mark.parametrize("kind", ["writer", "stage"])
def test_an_interrupt_anywhere_loses_nothing_silently(shared_node, contents, feed_name, kind):
    """Each accepted row is there once, in order, or a later call has raised."""
    steps, outcomes = 0, collections.Counter()
    with blocking.connect(shared_node.url) as observer:
        feed = observer.create_feed(feed_name, partitions=1)
        with SignalAt(NEVER) as never, (feed.writer if kind == "writer" else feed.stage)(batch_rows=3) as sender:
            write_some(sender, feed, [], [])
        steps = never.lines
    assert steps > 500
    for trial, step in enumerate(range(1, steps, steps // TRIALS)):
        with blocking.connect(shared_node.url) as client:
            feed = client.create_feed(f"{feed_name}-{trial}", partitions=1)
            sender = (feed.writer if kind == "writer" else feed.stage)(batch_rows=3)
            accepted, single = [], []
            with contextlib.suppress(KeyboardInterrupt), SignalAt(step):
                write_some(sender, feed, accepted, single)
            outcome = ""
            try:
                if kind == "writer":
                    sender.flush()
                else:
                    feed.publish("sink", 0, [sender.seal()])
                feed.put(b"after", b"v")
            except tailrace.TailraceError as error:
                outcome = str(error)
        outcomes["refused" if "interrupted" in outcome else outcome] += 1
        history = [(row.key, row.value) for row in contents(shared_node.url, feed.name).rows]
        values = [value for key, value in history if key not in (b"single", b"after")]
        assert len(set(values)) == len(values), "a row is there twice"
        order = [int(value) for value in values]
        assert order == sorted(order)
        assert [value for key, value in history if key == b"single"][: len(single)] == single
        if not outcome:
            assert set(accepted) <= set(values), f"a row is lost in silence, interrupted at step {step}"
            assert (b"after", b"v") in history
    assert outcomes.keys() == {"", "refused"}, "both ends are reached, and no other"


def read_some(stream, taken, *, polls):
    """Reads until there is nothing more. The events of each call that returns go to ``taken``."""
    while True:
        if polls:
            events = stream.poll(max_rows=7, timeout=0.0)
        else:
            event = stream.next(0.0)
            events = [] if event is None else [event]
        taken += events
        if not events:
            return


def seqs_of(events):
    return [row.seq for event in events if isinstance(event, tailrace.Mutations) for row in event]


@pytest.mark.parametrize("polls", [False, True])
def test_an_interrupt_anywhere_in_a_stream_loses_no_event(shared_node, feed_name, polls):
    """The next call has the events of the one that was interrupted, or raises."""
    outcomes = collections.Counter()
    with blocking.connect(shared_node.url) as client:
        feed = client.create_feed(feed_name, partitions=1)
        for number in range(4):
            feed.write([Put(b"%d-%d" % (number, row), b"v") for row in range(10)])

        def trial(step):
            taken = []
            with feed.consume() as stream:
                while not stream._session.has_event():
                    stream._link.push()
                with contextlib.suppress(KeyboardInterrupt), SignalAt(step) as interrupt:
                    read_some(stream, taken, polls=polls)
                refused = ""
                latest = stream.latest_positions
                assert sum(latest.seqs().values()) <= max(seqs_of(taken), default=0), f"at step {step}"
                try:
                    while 40 not in seqs_of(taken):
                        read_some(stream, taken, polls=polls)
                except tailrace.TailraceError as error:
                    refused = str(error)
            outcomes["refused" if "interrupted" in refused else refused] += 1
            seqs = seqs_of(taken)
            assert seqs == list(range(1, len(seqs) + 1)), f"an event is lost in silence, interrupted at step {step}"
            return interrupt.left

        left = trial(1 << 40)
        steps = (1 << 40) - left
        for step in range(1, steps, max(steps // TRIALS, 1)):
            trial(step)
    assert outcomes.keys() == {"", "refused"}, "both ends are reached, and no other"


def held_at(monkeypatch, name):
    """Holds one thread before it goes on with a method of the link; returns who that is, and two events."""
    original = getattr(BlockingLink, name)
    held, goes_on = threading.Event(), threading.Event()

    def method(self, *arguments):
        if threading.current_thread() is not threading.main_thread() and not held.is_set():
            held.set()
            assert goes_on.wait(SECONDS_MAX)
        return original(self, *arguments)

    monkeypatch.setattr(BlockingLink, name, method)
    return held, goes_on


class HeldPoll:
    """A poll object whose wait in another thread than the main one ends when a test says so."""

    def __init__(self, poll):
        self._poll = poll
        self.register, self.unregister, self.modify, self.now = poll.register, poll.unregister, poll.modify, poll.now
        self.waits, self.goes_on = threading.Event(), threading.Event()

    def wait(self, seconds):
        if threading.current_thread() is not threading.main_thread():
            self.waits.set()
            assert self.goes_on.wait(SECONDS_MAX)
        return self._poll.wait(seconds)


def in_thread(call):
    """Starts a thread; returns it, and a list that gets what the call has returned or raised."""
    results = []

    def work():
        try:
            results.append(call())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, results


def ended(thread):
    thread.join(SECONDS_MAX)
    assert not thread.is_alive(), "the thread hangs"


def test_a_thread_that_waits_at_the_socket_does_not_hide_another_ones_interrupt(client, feed, monkeypatch):
    """A stage's block was taken for sending and never sent: the later ones would wait for it."""
    link = client._runner._link
    stage = feed.stage(batch_rows=1)
    held = HeldPoll(link._poll)
    monkeypatch.setattr(link, "_poll", held)
    mover, results = in_thread(lambda: feed.get(b"k"))
    assert held.waits.wait(SECONDS_MAX)

    def interrupt():
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(link, "_write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            stage.put(b"k", b"taken for sending")
    held.goes_on.set()
    ended(mover)
    for call in (lambda: stage.put(b"k", b"later"), stage.seal, lambda: feed.get(b"k")):
        with pytest.raises(tailrace.TailraceError, match="interrupted"):
            call()
    assert "interrupted" in str(results)


@pytest.mark.parametrize(
    "error", [OSError("broken pipe"), tailrace.Unreachable("no TLS any more")], ids=["OSError", "TLS"]
)
def test_a_failed_write_beside_the_mover_is_no_interrupt(client, feed, monkeypatch, error):
    """The mover notices the broken connection."""
    link = client._runner._link
    held = HeldPoll(link._poll)
    monkeypatch.setattr(link, "_poll", held)
    mover, results = in_thread(lambda: feed.get(b"k"))
    assert held.waits.wait(SECONDS_MAX)

    def fail():
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(link, "_write", fail)
        link.push()
    held.goes_on.set()
    ended(mover)
    assert results == [None]
    assert feed.get(b"k") is None


def test_a_lost_connection_is_no_interrupt_for_other_threads(client, feed, node_process, monkeypatch):
    """Between the loss and what the session makes of it, another thread begins a call."""
    held, goes_on = held_at(monkeypatch, "_lost")
    link = client._runner._link
    poll = HeldPoll(link._poll)
    monkeypatch.setattr(link, "_poll", poll)
    mover, results = in_thread(lambda: feed.get(b"k"))
    assert poll.waits.wait(SECONDS_MAX)
    node_process.kill()
    poll.goes_on.set()
    while not held.is_set() and link._sock is not None:
        mover.join(0.01)
    with pytest.raises(tailrace.Unreachable):
        feed.get(b"k", timeout=0)
    goes_on.set()
    node_process.start()
    ended(mover)
    assert results == [None]


def test_a_wait_that_an_interrupt_has_left_behind_is_woken_once(client):
    """Else each thread that ends its wait would wake it, and the others would sleep for a tick."""
    link = client._runner._link
    left, waiting = threading.Lock(), threading.Lock()
    for turn in (left, waiting):
        turn.acquire()
        link._waiting[turn] = lambda: False
    for _ in range(2):
        link._leave(threading.Lock())
    assert not left.locked()
    assert not waiting.locked()


@pytest.mark.parametrize("way", ["general", "short"])
def test_an_interrupt_anywhere_in_the_link_leaves_other_threads_a_mover(shared_node, feed_name, way):
    """Else nothing would read the answers to the other threads' requests, on a connection that is fine."""
    path = inspect.getsourcefile(BlockingLink)
    ends = collections.Counter()
    with blocking.connect(shared_node.url) as observer:
        feed = observer.create_feed(feed_name, partitions=1)
        if way == "short":
            feed.get(b"k")
        with SignalAt(NEVER, path=path) as never:
            feed.get(b"k")
        lines = never.lines
    for step in range(1, lines + 1):
        with blocking.connect(shared_node.url) as client:
            feed = client.feed(feed_name)
            if way == "short":
                feed.get(b"k")
            with contextlib.suppress(KeyboardInterrupt), SignalAt(step, path=path):
                feed.get(b"k")
            other, results = in_thread(lambda feed=feed: feed.get(b"k", timeout=5))
            ended(other)
        assert results == [None] or "interrupted" in str(results), f"interrupted at line {step}: {results}"
        ends[results == [None]] += 1
    assert ends[True] > 10, "most interrupts leave the client as it was"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["writer", "stage"])
def test_an_interrupt_anywhere_beside_another_thread(shared_node, contents, feed_name, kind):
    """The other thread ends, each row that was accepted is there once, or a later call has raised."""
    with blocking.connect(shared_node.url) as client:
        feed = client.create_feed(feed_name, partitions=1)
        with SignalAt(NEVER) as never, (feed.writer if kind == "writer" else feed.stage)(batch_rows=3) as sender:
            write_some(sender, feed, [], [])
        steps = never.lines
    for trial, step in enumerate(range(1, steps, steps // TRIALS_BESIDE)):
        with blocking.connect(shared_node.url) as client:
            feed = client.create_feed(f"{feed_name}-{trial}", partitions=1)
            sender = (feed.writer if kind == "writer" else feed.stage)(batch_rows=3)
            accepted, beside = [], []

            def put_beside(feed=feed, sender=sender, beside=beside):
                for number in range(12):
                    sender.put(b"beside", b"beside %02d" % number)
                    beside.append(b"beside %02d" % number)
                    feed.get(b"single")

            other, results = in_thread(put_beside)
            with contextlib.suppress(KeyboardInterrupt), SignalAt(step):
                write_some(sender, feed, accepted, [])
            ended(other)

            def end(feed=feed, sender=sender):
                sender.flush() if kind == "writer" else feed.publish("sink", 0, [sender.seal()])

            last, ends = in_thread(end)
            ended(last)
        errors = [error for error in (*results, *ends) if isinstance(error, BaseException)]
        assert all("interrupted" in str(error) for error in errors), f"interrupted at step {step}: {errors}"
        values = [row.value for row in contents(shared_node.url, feed.name).rows if row.key != b"single"]
        assert len(set(values)) == len(values), "a row is there twice"
        mine, others = ([value for value in values if value.startswith(b"beside") is is_of] for is_of in (False, True))
        assert list(map(int, mine)) == sorted(map(int, mine))
        assert others == sorted(others)
        if not errors:
            assert set(accepted + beside) <= set(values), f"a row is lost in silence, interrupted at step {step}"


def test_a_put_that_is_interrupted_before_it_is_sent_is_never_sent(node_process, contents):
    """At each line of the SDK up to the wait for a connection."""
    with contextlib.ExitStack() as stack:
        feeds = []
        for _ in range(LINES_OF_A_PUT):
            feed = stack.enter_context(blocking.connect(node_process.url)).create_feed("orders", partitions=1)
            feed.put(b"k", b"before")
            feeds.append(feed)
        node_process.kill()
        for step, feed in enumerate(feeds, 1):
            with pytest.raises(KeyboardInterrupt), SignalAt(step):
                feed.put(b"k", b"interrupted at line %d" % step)
        node_process.start()
        refused = []
        for feed in feeds:
            try:
                feed.get(b"k")
            except tailrace.TailraceError as error:
                refused.append(str(error))
    assert all("interrupted" in text for text in refused)
    assert 0 < len(refused) < LINES_OF_A_PUT, "some interrupts came within a step, and others between steps"
    assert set(contents(node_process.url).history()[b"k"]) == {b"before"}


def test_no_plan_is_left_to_the_collector(feed, node_process, monkeypatch):
    """An interrupt within the end of a dropped generator would be ignored."""
    closed = []

    def noted(flush):
        @functools.wraps(flush)
        def wrapper(self):
            try:
                result = yield from flush(self)
            except GeneratorExit:
                closed.append(any(frame.function == "pass_all" for frame in inspect.stack()))
                raise
            return result

        return wrapper

    monkeypatch.setattr(WriterCore, "flush", noted(WriterCore.flush))
    with feed.writer() as writer:
        writer.put(b"k", b"v")
        with node_process.freeze(), pytest.raises(tailrace.Unreachable):
            writer.flush(timeout=0.1)
    assert closed == [True]
