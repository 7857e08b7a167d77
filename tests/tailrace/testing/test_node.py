"""A node in the hands of a test: killed, set back, cut off, frozen."""

import contextlib
import http.client
from pathlib import Path

import pytest
import trio

import tailrace
from tailrace.testing import NodeFailed, node
from tailrace.testing.forks import ForkFailed, Forks
from tailrace.testing.node import FORKS
from tailrace.testing.ports import free_port
from tailrace.testing.template import REQUEST_BYTES_MAX

pytestmark = pytest.mark.slow


@contextlib.asynccontextmanager
async def feed_of(node, **options):
    async with tailrace.connect(node.url, **options) as client:
        yield await client.create_feed("shop", partitions=1, exist_ok=True)


def status_of(pid):
    """The fields of /proc behind the name of a process: its state, its parent, and others."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


async def next_of(kind, stream):
    """The next event of a kind."""
    while not isinstance(event := await stream.next(), kind):
        pass
    return event


async def test_a_killed_node_has_its_data_and_its_port_again(tailrace_node):
    url = tailrace_node.url
    async with feed_of(tailrace_node) as feed:
        await feed.put(b"k", b"v")
        tailrace_node.kill()
        assert not tailrace_node.is_running
        tailrace_node.start()
        assert (await feed.get(b"k")).value == b"v"
    assert tailrace_node.url == url


async def test_lost_writes_are_rolled_back(tailrace_node):
    async with feed_of(tailrace_node) as feed, feed.consume() as stream:
        await feed.put(b"k", b"kept")
        await next_of(tailrace.Mutations, stream)
        with tailrace_node.lose_writes():
            await feed.put(b"k", b"lost")
            await feed.put(b"new", b"lost")
            while (await next_of(tailrace.Mutations, stream)).last_seq < 3:
                pass
        assert set((await next_of(tailrace.Rollback, stream)).keys) == {b"k", b"new"}
        again = {}
        while len(again) < 2:
            event = await next_of(tailrace.Mutations, stream)
            again |= dict(zip(event.keys(), event.values(), strict=True))
        assert again == {b"k": b"kept", b"new": None}
        assert await feed.get(b"new") is None


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_a_node_that_is_down_loses_its_writes_too(tailrace_node, end):
    async with feed_of(tailrace_node) as feed:
        await feed.put(b"k", b"kept")
        with tailrace_node.lose_writes():
            await feed.put(b"k", b"lost")
            getattr(tailrace_node, end)()
        assert (await feed.get(b"k")).value == b"kept"


async def test_nothing_is_lost_if_the_body_raises(tailrace_node):
    async with feed_of(tailrace_node) as feed:
        with contextlib.suppress(InterruptedError), tailrace_node.lose_writes():
            await feed.put(b"k", b"v")
            raise InterruptedError
        assert (await feed.get(b"k")).value == b"v"
    assert [path.name for path in tailrace_node.data.parent.iterdir() if path.is_dir()] == ["node"]


async def test_a_node_that_is_cut_off_breaks_connections_and_takes_no_new_ones(tailrace_node):
    async with feed_of(tailrace_node) as feed, feed.consume() as stream:
        await feed.put(b"k", b"before")
        await next_of(tailrace.Mutations, stream)
        with tailrace_node.cut():
            with pytest.raises(tailrace.Unreachable):
                async with feed_of(tailrace_node, connect_timeout=0.1):
                    pass
            async with trio.open_nursery() as nursery:  # it is repeated until the node can be reached
                nursery.start_soon(feed.put, b"k", b"after")
                with contextlib.ExitStack() as healed:
                    healed.callback(tailrace_node.order, "heal")
        event = await next_of(tailrace.Mutations | tailrace.Rollback, stream)
        assert event.values() == [b"after"]


def health_of(port):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/healthz")
        return connection.getresponse().status


def test_a_node_that_is_cut_off_cuts_http_too():
    """Connections that wait, such as those of events, end at once; new ones end without an answer."""
    port = free_port()
    with node(http=f"127.0.0.1:{port}") as made:
        waiting = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        waiting.request("GET", "/healthz")
        assert waiting.getresponse().read()
        with made.cut():
            assert waiting.sock.recv(1) == b"", "it is kept open, and its peer has nothing to say"
            with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
                health_of(port)
        assert health_of(port) == 200
        waiting.close()


async def test_a_frozen_node_is_stopped_until_the_end(tailrace_node):
    async with feed_of(tailrace_node) as feed:
        with tailrace_node.freeze():
            assert tailrace_node.is_paused
            assert status_of(tailrace_node.pid)[0] == "T"
        await feed.put(b"k", b"w")
        assert (await feed.get(b"k")).value == b"w"


def test_a_node_without_pytest():
    with node() as made:
        folder = made.data.parent
        assert folder.is_dir()
        with pytest.raises(NodeFailed, match="runs already"):
            made.start()
        made.stop()
        made.stop()
        with pytest.raises(NodeFailed, match="does not run"):
            made.kill()
        with pytest.raises(NodeFailed, match="does not run"), made.cut():
            pass
    assert not folder.exists()


def test_a_node_that_cannot_start_says_why(tmp_path):
    with (
        pytest.raises(NodeFailed, match="ended before it was ready:\nnode: tailrace: a set has two members or more"),
        node(tmp_path, options=["--members", "127.0.0.1:1"]),
    ):
        pass


def test_a_failed_body_ends_the_node_at_once(tmp_path):
    with pytest.raises(ValueError, match="of the body"), node(tmp_path) as made:
        raise ValueError("of the body")
    assert not made.is_running


def test_a_request_that_is_too_long_is_refused():
    with pytest.raises(ForkFailed, match="arguments and environment take"):
        Forks([]).request(b" " * (REQUEST_BYTES_MAX + 1), [])


def test_the_template_has_one_thread(tailrace_shared_node):
    FORKS.warm_up()
    template = status_of(tailrace_shared_node.pid)[1]
    assert "\nThreads:\t1\n" in Path(f"/proc/{template}/status").read_text()
