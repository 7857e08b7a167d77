"""The client's side of a WebSocket for frames, against the same library's server."""

from __future__ import annotations

import os
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

from tailrace.errors import Forbidden, ProtocolError, Unreachable
from tailrace.link.address import Address
from tailrace.websocket.engine import MESSAGE_BYTES, SUBPROTOCOL, WebSocketEngine

NODE = Address("node.example", 4790)


class Server:
    """The other side, and what it has heard."""

    def __init__(self, engine):
        self.engine = engine
        self.ws = WSConnection(ConnectionType.SERVER)

    def events(self):
        for data in self.engine.take():
            self.ws.receive_data(data)
        return list(self.ws.events())

    def received(self):
        messages = [event for event in self.events() if isinstance(event, BytesMessage)]
        assert all(len(message.data) <= MESSAGE_BYTES for message in messages)
        return b"".join(bytes(message.data) for message in messages)

    def send(self, event):
        self.engine.feed(bytes(self.ws.send(event)))


def begun(tunnel=""):
    engine = WebSocketEngine(NODE, tunnel)
    server = Server(engine)
    [server.request] = server.events()
    return engine, server


def opened():
    engine, server = begun()
    server.send(AcceptConnection(subprotocol=SUBPROTOCOL))
    assert engine.is_open
    return engine, server


def test_the_request_has_host_path_and_subprotocol_and_offers_no_compression():
    _, server = begun("/tailrace")
    request = server.request
    assert isinstance(request, Request)
    assert (request.host, request.target) == ("node.example:4790", "/tailrace/frames")
    assert request.subprotocols == [SUBPROTOCOL]
    assert request.extensions == []


@given(
    st.lists(st.binary(max_size=300), max_size=8),
    st.lists(st.integers(1, 40), min_size=1, max_size=20),
    st.booleans(),
)
def test_bytes_arrive_in_order_however_they_are_cut(payloads, cuts, has_pings):
    engine, server = opened()
    wire = bytearray()
    for payload in payloads:
        wire += server.ws.send(BytesMessage(payload))
        if has_pings:
            wire += server.ws.send(Ping(payload[:100]))
    found, at = b"", 0
    for cut in [*cuts, len(wire)]:
        if at < len(wire):
            engine.feed(bytes(wire[at : at + cut]))
        at += cut
        found += engine.received()
    assert found == b"".join(payloads)
    engine.send(payloads)
    assert server.received() == b"".join(payloads)


def test_large_sends_are_cut_into_messages():
    engine, server = opened()
    data = os.urandom(3 * MESSAGE_BYTES + 17)
    engine.send([data[:10], memoryview(data)[10:]])
    assert server.received() == data


def test_many_pings_get_one_pong():
    _, server = opened()
    for number in range(10_000):
        server.send(Ping(b"%d" % number))
    assert server.events() == [Pong(b"9999")]


def test_the_end_is_answered():
    engine, server = opened()
    server.send(CloseConnection(1001))
    assert engine.is_ended
    assert engine.reason == ""
    assert [type(event) for event in server.events()] == [CloseConnection]
    engine.send([b"late"])
    assert engine.take() == []


def test_the_reason_of_an_end_is_kept():
    engine, server = opened()
    server.send(CloseConnection(1009, "too long"))
    assert engine.reason == "1009 too long"


def test_a_text_message_ends_it():
    engine, server = opened()
    server.send(TextMessage("frames are no text"))
    assert engine.is_ended
    assert "text message" in engine.reason


@pytest.mark.parametrize(
    "frame",
    [
        b"\xc2\x01x",  # compressed, which was not agreed upon
        b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff",  # a length of 2^64 - 1
        b"\x8a\xfe\x01\x00",  # a masked pong of 256 bytes
        b"\x83\x00",  # an unknown opcode
        b"\x80\x01x",  # a continuation of nothing
    ],
)
def test_broken_frames_end_it(frame):
    engine, _ = opened()
    engine.feed(frame)
    assert engine.is_ended
    assert engine.reason


def test_a_huge_message_is_handed_over_as_it_comes():
    engine, _ = opened()
    engine.feed(b"\x82\x7f" + (2**62).to_bytes(8, "big"))
    for _ in range(100):
        engine.feed(bytes(10_000))
        assert engine.received() == bytes(10_000)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, Forbidden) for status in (401, 403)),
        *((status, ProtocolError) for status in (302, 400, 404, 421)),
        *((status, Unreachable) for status in (429, 502, 503)),
    ],
)
def test_refusals(status, kind):
    _, server = begun("/tailrace")
    server.send(RejectConnection(status_code=status, headers=[(b"location", b"wss://other.example/")], has_body=True))
    with pytest.raises(
        kind, match=rf"node.example:4790 answers {status} to the request .* at /tailrace/frames: what it says"
    ):
        server.send(RejectData(b"what it says\nand more", body_finished=True))


def test_a_page_of_a_proxy_is_not_repeated():
    _, server = begun()
    server.send(RejectConnection(status_code=502, headers=[], has_body=True))
    with pytest.raises(Unreachable) as caught:
        server.send(RejectData(b"<html><h1>Bad Gateway</h1>", body_finished=True))
    assert "html" not in str(caught.value)


def test_a_refusal_may_be_cut_or_have_no_end():
    engine, server = begun()
    server.send(RejectConnection(status_code=403, headers=[], has_body=True))
    with pytest.raises(Forbidden):
        engine.fed_end()
    engine, server = begun()
    server.send(RejectConnection(status_code=403, headers=[], has_body=True))
    body = bytes(server.ws.send(RejectData(bytes(100_000), body_finished=False)))
    with pytest.raises(Forbidden):
        engine.feed(body)


def test_a_redirect_names_the_other_place():
    _, server = begun()
    server.send(RejectConnection(status_code=302, headers=[(b"Location", b"wss://other.example/")], has_body=True))
    with pytest.raises(ProtocolError, match=r"another place, wss://other\.example/: use the URL of that"):
        server.send(RejectData(b"", body_finished=True))


def test_a_server_without_the_subprotocol():
    _, server = begun()
    with pytest.raises(ProtocolError, match=r"does not know the subprotocol tailrace\.frames\.v1"):
        server.send(AcceptConnection())


@pytest.mark.parametrize("answer", [b"\x00\x00\x00", b"SSH-2.0-OpenSSH\r\n", b"HT\x01"])
def test_other_protocols(answer):
    engine, _ = begun()
    engine.feed(answer[:0])
    with pytest.raises(ProtocolError, match="does not speak WebSocket"):
        engine.feed(answer)
    engine, _ = begun()
    with pytest.raises(ProtocolError, match="does not speak WebSocket"):
        deque(map(engine.feed, (bytes([byte]) for byte in answer)))


def test_an_answer_that_is_no_upgrade():
    engine, _ = begun()
    with pytest.raises(ProtocolError, match="opens no WebSocket for frames"):
        engine.feed(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n")


def test_an_endless_head_of_an_answer_is_refused():
    engine, _ = begun()
    engine.feed(b"HTTP/1.1 200 OK\r\nX: ")
    with pytest.raises(ProtocolError, match="opens no WebSocket for frames"):
        deque(map(engine.feed, [b"x" * 1_000] * 1_000))


def test_the_end_before_it_is_open():
    engine, _ = begun()
    with pytest.raises(Unreachable, match="before the WebSocket was open"):
        engine.fed_end()
