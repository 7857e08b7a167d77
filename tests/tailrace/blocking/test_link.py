"""Connections that break, hang, end while nobody looks, and come back."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

import pytest
from tests.processes.program import Orders

import tailrace
from tailrace import blocking
from tailrace.wire.messages import PROTOCOL_VERSION, HelloOk

pytestmark = pytest.mark.slow


def test_every_row_is_written_once_over_a_bad_network(node_process, bad_network, contents):
    rows = {b"key-%d" % number: [b"%d" % number, b"again"] for number in range(3000)}
    network = bad_network(node_process.port, seed=4700)
    with blocking.connect(network.url, retry_for=60) as client:
        feed = client.create_feed("orders", partitions=4)
        with feed.writer(batch_rows=50, in_flight_bytes=100_000) as writer:
            for column in (0, 1):
                for number, (key, values) in enumerate(rows.items()):
                    writer.put(key, values[column])
                    if number % 500 == 0:
                        writer.flush()
        for number in range(50):
            feed.put(b"single-%d" % number, b"v")
        network.cutting = False
    assert network.cuts > 10
    found = contents(node_process.url).history()
    assert {key: values for key, values in found.items() if not key.startswith(b"single")} == rows
    assert [found[b"single-%d" % number] for number in range(50)] == [[b"v"]] * 50


def test_a_frame_that_the_socket_takes_in_part_leaves_whole(node_process):
    """The frames of the general way and of the short one make the same bytes."""
    near, far = socket.socketpair()
    link = blocking.connect(node_process.url)._runner._link
    with near, far:
        near.setblocking(False)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        sent, expected, parts = bytearray(), bytearray(), 0
        for number in range(300):
            frame = os.urandom(number * 10 + 1)
            expected += frame
            left = link._send_alone(near, frame)
            while left:
                parts += 1
                sent += far.recv(1 << 20)
                left = link._send_alone(near, *left)
        near.close()
        while data := far.recv(1 << 20):
            sent += data
    assert sent == expected
    assert parts


def test_a_restart_is_ridden_out(node_process, contents):
    with blocking.connect(node_process.url) as client:
        feed = client.create_feed("orders", partitions=4)
        restart = threading.Timer(1.0, node_process.start)
        with feed.writer(batch_rows=10) as writer:
            for number in range(5000):
                writer.put(b"%d" % number, b"v")
                if number == 2000:
                    node_process.kill()
                    restart.start()
        feed.put(b"after", b"v")
        restart.join()
    assert contents(node_process.url).history() == {b"after": [b"v"]} | {
        b"%d" % number: [b"v"] for number in range(5000)
    }


def test_time_out_of_one_call(node_process):
    with blocking.connect(node_process.url) as client:
        feed = client.create_feed("orders")
        feed.put(b"k", b"v")
        with node_process.freeze():
            with pytest.raises(tailrace.Unreachable) as caught:
                feed.put(b"k", b"w", timeout=0.2)
            assert caught.value.outcome == "unknown"
            with pytest.raises(tailrace.Unreachable):
                feed.get(b"k", timeout=0.2)
            with pytest.raises(tailrace.Unreachable):
                client.feeds(timeout=0.2)
            writer = feed.writer()
            writer.put(b"k", b"x")
            with pytest.raises(tailrace.Unreachable, match=r"1 blocks have no answer after 0\.2 s"):
                writer.flush(timeout=0.2)
        writer.flush()
        assert feed.get(b"k").value == b"x"


@pytest.mark.parametrize("kind", ["stage", "writer"])
def test_a_program_may_take_its_time_between_two_calls(node_process, contents, monkeypatch, kind):
    """Longer than ``retry_for``, with rows on their way: that nobody has asked for answers is not the node's fault."""
    real, paused = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: real() + paused[0])
    with blocking.connect(node_process.url, retry_for=30) as client:
        feed = client.create_feed("orders", partitions=1)
        rows = feed.stage(batch_rows=1) if kind == "stage" else feed.writer(batch_rows=1)
        node_process.pause()
        try:
            rows.put(b"a", b"v")
            paused[0] = 1_000.0
        finally:
            threading.Timer(0.5, node_process.proceed).start()
        rows.put(b"b", b"v")
        if kind == "stage":
            feed.publish("sink", 0, [rows.seal()])
        else:
            rows.flush()
    assert contents(node_process.url).history() == {b"a": [b"v"], b"b": [b"v"]}


def test_what_was_not_sent_has_not_happened(node_process):
    with blocking.connect(node_process.url, retry_for=0.5) as client:
        feed = client.create_feed("orders", timeout=60)
        feed.put(b"k", b"v", timeout=60)
        node_process.kill()
        with pytest.raises(tailrace.Unreachable) as caught:
            feed.put(b"k", b"w")
        assert caught.value.outcome in ("unknown", "not sent")
        with pytest.raises(tailrace.Unreachable, match="refused") as caught:
            feed.put(b"k", b"w")
        assert caught.value.outcome == "not sent"
        node_process.start()
        assert feed.get(b"k", timeout=60).value == b"v"
        assert feed.put(b"k", b"x", timeout=60).seq >= 2


def until_dropped(node):
    """The node ends a connection on which it hears nothing for three intervals; nobody else is connected then."""
    with blocking.connect(node.url) as watcher:
        while len(watcher.status().details["connections"]) > 1:
            time.sleep(0.02)


def test_connection_that_the_node_has_dropped_is_made_again(start_node):
    node = start_node(Orders(limits={"noop_interval_s": 0.1}))
    with blocking.connect(node.url) as client:
        feed = client.create_feed("orders")
        writer = feed.writer()
        writer.put(b"k", b"0")
        writer.flush()
        until_dropped(node)
        writer.put(b"k", b"1")
        writer.flush()
        assert feed.get(b"k").version.seq == 2


def test_waiting_client_is_not_dropped(start_node):
    node = start_node(Orders(limits={"noop_interval_s": 1.0}))
    with blocking.connect(node.url) as client:
        client.status()
        assert not client._runner.run_until(lambda: False, time.monotonic() + 4)
        assert client.status().details["connections"][0]["age_s"] > 4


def test_silent_node_is_left(start_node, bad_network):
    node = start_node(Orders(limits={"noop_interval_s": 0.1}))
    network = bad_network(node.port)
    network.cutting = False
    with blocking.connect(network.url) as client:
        feed = client.create_feed("orders")
        feed.put(b"k", b"v")
        network.freeze()
        with pytest.raises(tailrace.Unreachable, match="nothing heard"):
            feed.put(b"k", b"w", timeout=3)
        network.heal()
        feed.put(b"k", b"x")
        assert network.connections > 1


@pytest.fixture
def answering_server():
    """Starts a peer that says ``answer`` to whatever it hears, once a connection; gives its URL."""
    with contextlib.ExitStack() as until_the_end:

        def start(answer):
            server = socket.create_server(("127.0.0.1", 0))
            thread = threading.Thread(target=serve, args=(server, answer))
            thread.start()
            until_the_end.callback(stop, server, thread)
            return f"tailrace://127.0.0.1:{server.getsockname()[1]}"

        yield start


def serve(server, answer):
    while True:
        try:
            sock, _ = server.accept()
        except OSError:
            return
        with sock, contextlib.suppress(OSError):
            sock.recv(1000)
            sock.sendall(answer)
            sock.settimeout(60)
            sock.recv(1000)


def stop(server, thread):
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a frame"),
        (HelloOk(PROTOCOL_VERSION + 1, "00" * 16, "00" * 16, "", 1, 1.0, ()).encode(), "version"),
    ],
)
def test_peer_that_speaks_something_else(answering_server, answer, text):
    url = answering_server(answer)
    with pytest.raises(tailrace.ProtocolError, match=text) as caught, blocking.connect(url):
        pass
    assert f"the answer from {url.removeprefix('tailrace://')} cannot be used" in str(caught.value)


def test_another_program_at_the_first_address(answering_server, shared_node):
    url = answering_server(b"SSH-2.0-OpenSSH_9.2\r\n")
    with blocking.connect(f"{url},{shared_node.url.removeprefix('tailrace://')}") as client:
        assert client.status().healthy


def test_another_program_at_each_address(answering_server):
    url = answering_server(b"SSH-2.0-OpenSSH_9.2\r\n")
    port = url.rpartition(":")[2]
    text = rf"could be used within 0.5 s: the answer from .*:{port} cannot be used: .* not a frame"
    with (
        pytest.raises(tailrace.Unreachable, match=text),
        blocking.connect(f"{url},localhost:{port}", connect_timeout=0.5),
    ):
        pass


def test_more_descriptors_than_select_takes(shared_node):
    socks = [socket.socket() for _ in range(1100)]
    try:
        with blocking.connect(shared_node.url) as client:
            assert client.status().healthy
    finally:
        for sock in socks:
            sock.close()
