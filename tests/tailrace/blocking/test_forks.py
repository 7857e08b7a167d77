"""A blocking client whose process was forked: it connects anew in the child, and works in the parent as before."""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import json
import os
import pickle
import threading

import pytest

from tailrace import Put, blocking
from tailrace.consuming.subscription import Subscription
from tailrace.model import Level


def in_child(work):
    """Runs ``work`` in a forked process; what it returns, which has to be JSON."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            with os.fdopen(writer, "w") as pipe:
                json.dump(work(), pipe)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)

    def result():
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        assert os.waitpid(pid, 0)[1] == 0, "the child has failed"
        return json.loads(text)

    return result


def error_of(call):
    """The name and text of what ``call`` raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def test_every_call_is_refused_in_a_forked_process(client, feed, shared_node):
    feed.write([Put(b"%d" % number, b"%d" % number) for number in range(300)])
    stage = feed.stage(batch_rows=10)
    stage.put(b"0", b"0")
    with feed.writer(batch_rows=10) as writer, client.stream(wanted(feed)) as stream:
        writer.put(b"of the parent", b"v")

        def work():
            rows = [Put(b"%d" % number, b"of the child") for number in range(200)]
            calls = {
                "writer.put": lambda: writer.put(b"1", b"of the child"),
                "writer.delete": lambda: writer.delete(b"1"),
                "stage.put": lambda: stage.put(b"1", b"of the child"),
                "writer.write": lambda: writer.write(rows),
                "writer.flush": writer.flush,
                "writer.exit": lambda: writer.__exit__(None, None, None),
                "stage.write": lambda: stage.write(rows),
                "stage.seal": stage.seal,
                "stream": lambda: next(stream),
            }
            errors = {name: error_of(call) for name, call in calls.items()}
            stream.close()
            for number in range(300):  # of the client of the parent, which has connected anew
                assert feed.get(b"%d" % number).value == b"%d" % number
            client.close()
            errors |= {f"{name}, closed": error_of(call) for name, call in calls.items() if name != "stream"}
            with blocking.connect(shared_node.url) as mine:
                errors["its own"] = mine.feed(feed.name).get(b"7").value.decode(), ""
            return errors

        errors = in_child(work)
        for _ in range(3):
            for number in range(300):
                assert feed.get(b"%d" % number).value == b"%d" % number
        errors = errors()
        assert errors.pop("its own") == ["7", ""]
        assert {name: kind for name, (kind, _) in errors.items() if kind != "WrongProcess"} == {}
        assert all(f"belongs to process {os.getpid()}" in text for _, text in errors.values())
        assert feed.put(b"after", b"v").seq
    feed.publish("sink", 0, [stage.seal()])
    assert feed.get(b"of the parent").value == b"v"
    assert feed.get(b"1").value == b"1"


def test_a_client_and_its_feeds_connect_anew_in_a_forked_process(client, feed):
    feed.put(b"k", b"of the parent")

    def work():
        names = [info.name for info in client.feeds()]
        version = feed.put(b"k", b"of the child", if_version=feed.get(b"k").version, level="disk")
        feed.write([Put(b"%d" % number, b"of the child") for number in range(100)])
        with feed.writer(batch_rows=10) as writer, client.stream(wanted(feed)) as stream:
            for number in range(100, 200):
                writer.put(b"%d" % number, b"of the child")
            next(stream)
        assert client.cluster_id
        # A worker may fork once more.
        return [names, version.seq, error_of(lambda: feed.get(b"k")), in_child(lambda: feed.get(b"k").value.decode())()]

    result = in_child(work)
    for number in range(200, 300):
        feed.put(b"%d" % number, b"of the parent")
    names, seq, outcome, grandchild = result()
    assert feed.name in names
    assert feed.get(b"k").version.seq == seq
    assert outcome == ["nothing", ""]
    assert grandchild == "of the child"
    values = [item.value for item in feed.get_many([b"%d" % number for number in range(300)])]
    assert values == [b"of the child"] * 200 + [b"of the parent"] * 100


def test_processes_that_fork_within_calls_of_threads_share_nothing(client, feed):
    """Other threads of the parent are in the middle of calls when it forks, and hold its locks."""
    stop = threading.Event()

    def put(number):
        count = 0
        while not stop.is_set():
            feed.put(b"%d-%d" % (number, count), b"v")
            count += 1
        return count

    def work():
        for number in range(20):
            feed.put(b"child-%d-%d" % (os.getpid(), number), b"v")
        client.close()
        return [error_of(lambda: feed.get(b"k"))[0], os.getpid()]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        counts = [pool.submit(put, number) for number in range(4)]
        told = [in_child(work)() for _ in range(10)]
        stop.set()
        counts = [count.result() for count in counts]
    assert {name for name, _ in told} == {"Unreachable"}
    keys = [b"%d-%d" % (number, count) for number in range(4) for count in range(counts[number])]
    keys += [b"child-%d-%d" % (pid, number) for _, pid in told for number in range(20)]
    assert all(item is not None for item in feed.get_many(keys))


def test_a_writer_of_the_parent_leaves_nothing_in_the_session_of_the_child(client, feed):
    """Its rows are on their way when the process forks."""
    with feed.writer(batch_rows=10) as writer:
        for number in range(1_000):
            writer.put(b"%d" % number, b"of the parent")

        def work():
            errors = [error_of(lambda: writer.__exit__(KeyError, KeyError(), None))]
            session = client._core.session
            lanes = len(session._writes._lanes) + len(session._writes._ready)
            for number in range(100):
                feed.put(b"child-%d" % number, b"v")
            return [errors, lanes]

        assert in_child(work)() == [[["nothing", ""]], 0]
    assert sum(item.value == b"of the parent" for item in feed.items()) == 1_000


def test_a_process_that_is_forked_within_a_call_does_not_go_on_with_it(client, feed, tmp_path):
    feed.write([Put(b"%d" % number, bytes(1000)) for number in range(300)])
    results = []

    def progress(done, total):
        if not results:
            results.append(os.fork())
            if not results[0]:
                raise Forked

    try:
        fetched = feed.fetch(tmp_path / "copy", progress=progress)
    except Forked:
        os._exit(0 if error_of(lambda: feed.get(b"1"))[0] == "nothing" else 1)
    except BaseException:
        os._exit(2)
    assert os.waitpid(results[0], 0)[1] == 0
    assert fetched


class Forked(Exception):
    """Ends the call of the parent in the child."""


def wanted(feed):
    """All of ``feed``, from the beginning."""
    return Subscription(feed.name, "beginning", None, None, Level.DISK, "follow")


def test_leaving_the_contexts_in_a_forked_process_leaves_the_parent_alone(shared_node, feed_name):
    with blocking.connect(shared_node.url) as client:
        feed = client.create_feed(feed_name, partitions=4)
        writer = feed.writer()

        def work():
            with contextlib.ExitStack() as contexts:
                contexts.push(client)
                contexts.push(writer)
                raise KeyError

        result = in_child(lambda: error_of(work))
        feed.put(b"k", b"v")
        assert result()[0] == "KeyError"
        assert feed.get(b"k").value == b"v"
        assert in_child(lambda: error_of(client.close))()[0] == "nothing"
        assert feed.get(b"k").value == b"v"


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.deepcopy])
def test_to_send_a_client_to_another_process_is_refused_with_the_reason(client, feed, duplicate):
    with feed.writer() as writer, client.stream(wanted(feed)) as stream:
        for handle in (client, feed, writer, feed.stage(), stream):
            with pytest.raises(TypeError, match="connect in the other process"):
                duplicate(handle)
