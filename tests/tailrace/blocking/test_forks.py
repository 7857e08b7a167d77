"""A blocking client whose process was forked: it refuses in the child, and works in the parent as before."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle

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
                "get": lambda: feed.get(b"1"),
                "put": lambda: feed.put(b"1", b"of the child"),
                "write": lambda: feed.write(rows),
                "feeds": client.feeds,
                "status": client.status,
                "writer": feed.writer,
                "stage": feed.stage,
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
