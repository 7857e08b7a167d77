from __future__ import annotations

import re
import socket

import pytest

import tailrace
from tailrace import blocking
from tailrace.testing.ports import free_port


def test_feeds(client, feed_name):
    assert client.create_feed(feed_name, partitions=3, retention="history").name == feed_name
    [info] = [feed for feed in client.feeds() if feed.name == feed_name]
    assert (info.partitions, info.retention) == (3, "history")
    client.drop_feed(feed_name)
    assert feed_name not in [feed.name for feed in client.feeds()]
    with pytest.raises(tailrace.UnknownFeed):
        client.drop_feed(feed_name)


def test_feed_that_exists(client, feed_name):
    client.create_feed(feed_name, partitions=3)
    client.create_feed(feed_name, partitions=3)
    with pytest.raises(tailrace.FeedExists, match=r"partitions 3 \(asked for: 4\)"):
        client.create_feed(feed_name, partitions=4)
    with pytest.raises(tailrace.FeedExists):
        client.create_feed(feed_name, partitions=3, exist_ok=False)


def test_feed_that_cannot_be_made(client):
    with pytest.raises(tailrace.TailraceError, match="cannot be the name of a feed"):
        client.create_feed("Not A Name")
    with pytest.raises(tailrace.TailraceError, match="0 partitions"):
        client.create_feed("none", partitions=0)
    with pytest.raises(tailrace.TailraceError, match="keyspace"):
        client.create_feed("ranged", keyspace="range")


def test_a_name_that_is_no_text_leaves_the_client_usable(client):
    for call in (client.create_feed, client.drop_feed, lambda name: client.feed(name).get(b"k")):
        with pytest.raises(tailrace.TailraceError, match="do not fit into a request"):
            call(b"name")
    assert client.status()


def test_status(client):
    status = client.status()
    assert status.healthy
    assert status.software.startswith("tailrace ")


def test_name_is_shown_by_the_node(shared_node):
    with blocking.connect(shared_node.url, name="of the test") as client:
        names = [connection["name"] for connection in client.status().details["connections"]]
    assert "of the test" in names


def test_names_are_those_of_the_async_client():
    of_streams = {"stream", "consume", "items", "follow", "explain_resume"}
    internal = {"partition_map", "host", "level"}
    for kind in ("Client", "Feed", "Writer"):
        theirs = {name for name in vars(getattr(tailrace, kind)) if not name.startswith("_")}
        assert theirs - set(dir(getattr(blocking, kind))) <= of_streams | internal, kind


def test_bad_urls():
    for url in ("127.0.0.1:4700", "http://127.0.0.1", "tailrace://", "tailrace://a:b"):
        with pytest.raises(ValueError, match=re.escape("HOST:PORT")):
            blocking.connect(url)


@pytest.mark.slow
def test_nobody_there():
    client = blocking.connect(f"tailrace://127.0.0.1:{free_port()}", connect_timeout=0.5)
    text = r"no node at 127\.0\.0\.1:\d+ could be used within 0\.5 s: .*refused"
    with pytest.raises(tailrace.Unreachable, match=text), client:
        pass


def test_no_such_name():
    with pytest.raises(tailrace.Unreachable, match=r"cannot connect to no-such-host\.invalid:4700: "):
        blocking.connect("tailrace://no-such-host.invalid", connect_timeout=0.2).__enter__()


def test_one_of_several_addresses_answers(shared_node):
    url = f"tailrace://127.0.0.1:{free_port()},localhost:{shared_node.port}"
    with blocking.connect(url) as client:
        assert client.status().healthy


@pytest.mark.slow
def test_peer_that_is_no_node():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = blocking.connect(f"tailrace://127.0.0.1:{port}", connect_timeout=0.3)
        with pytest.raises(tailrace.Unreachable, match="nothing heard"), client:
            pass


def test_token_that_the_node_does_not_know(secured_node):
    with pytest.raises(tailrace.Forbidden, match="token"), blocking.connect(secured_node.url, token="secret"):
        pass


def test_exception_of_the_body_leaves_as_itself(shared_node):
    error = RuntimeError("of the body")
    with pytest.raises(RuntimeError) as caught, blocking.connect(shared_node.url):
        raise error
    assert caught.value is error


def test_closed_client_answers_every_call_with_an_error(shared_node, feed_name):
    with blocking.connect(shared_node.url) as client:
        feed = client.create_feed(feed_name)
        writer = feed.writer()
        writer.put(b"k", b"v")
    for call in (client.feeds, lambda: feed.put(b"k", b"v"), lambda: feed.get(b"k"), writer.flush, client.__enter__):
        with pytest.raises(tailrace.Unreachable, match="was closed"):
            call()
    client.close()


def test_client_connects_by_its_first_call_too(shared_node):
    client = blocking.connect(shared_node.url)
    assert client.status().healthy
    client.close()
