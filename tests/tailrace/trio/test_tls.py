"""TLS around a transport: the same promises, over real sockets."""

import collections
import os
import socket

import pytest
import trio
from tests.tailrace.trio.test_tcp import arrived, read, send_more_than_the_kernel_takes, tcp_pair

from tailrace.errors import ProtocolError, Unreachable
from tailrace.link.address import Address
from tailrace.tls.engine import RECORDS_MAX
from tailrace.trio.file_part import FilePart
from tailrace.trio.listener import listen_tcp
from tailrace.trio.tcp import TcpTransport, open_tcp
from tailrace.trio.tls import SLICE_BYTES, SecureTransport, accept_tls, connect_tls, handshake_seconds, peer_identity
from tailrace.trio.transport import FileTransport, PlacingTransport, receive_each

WHERE = Address("127.0.0.1", 1)


async def shake(authority, left, right, client=None, server=None):
    ends = {}

    async def connect(_):
        return left

    async def accept():
        ends["server"] = await accept_tls(right, server or authority.listening())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        ends["client"] = await connect_tls(connect, client or authority.client(), WHERE)
    return ends["client"], ends["server"]


@pytest.fixture
async def pair(nursery, authority):
    left, right = tcp_pair()
    ends = await shake(authority, TcpTransport(left, "left"), TcpTransport(right, "right"))
    for end in ends:
        nursery.start_soon(end.run)
    yield ends
    for end in ends:
        end.close()


async def test_what_is_sent_is_received(pair):
    left, right = pair
    left.send(b"one", memoryview(b"two"), b"")
    left.send(b"three")
    assert await read(right, 11) == b"onetwothree"
    right.send(b"back")
    assert await read(left, 4) == b"back"
    assert left.peer == "left"


async def test_it_is_a_transport(pair):
    left, _ = pair
    for protocol in (PlacingTransport, FileTransport, SecureTransport):
        assert isinstance(left, protocol)
    assert not isinstance(left._inner, SecureTransport)
    assert handshake_seconds(left) == left.handshake_seconds >= 0
    assert handshake_seconds(left._inner) == 0
    assert "CN=listening" in peer_identity(left).subject
    assert peer_identity(left._inner) is None


@pytest.mark.slow
async def test_more_than_the_kernel_takes_waits_in_order(pair):
    await send_more_than_the_kernel_takes(*pair)


async def test_one_large_send_leaves_the_loop_to_others(pair, monkeypatch):
    left, right = pair
    turns, encrypted = [], []
    encrypt = left._engine.encrypted

    def counted(data):
        encrypted.append((len(data), len(turns)))
        return encrypt(data)

    monkeypatch.setattr(left._engine, "encrypted", counted)

    async def others():
        while True:
            turns.append(None)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        data = os.urandom(10 * SLICE_BYTES)
        left.send(data)
        assert await read(right, len(data)) == data
        nursery.cancel_scope.cancel()
    assert max(size for size, _ in encrypted) == SLICE_BYTES
    # A pass of the scheduler may begin with one task and the next one end with it.
    assert max(collections.Counter(turn for _, turn in encrypted).values()) <= 2


@pytest.mark.parametrize("way", ["each", "some"])
async def test_many_small_records_leave_the_loop_to_others(pair, monkeypatch, way):
    left, right = pair
    turns, decrypted, found = [], [], []
    read_one = right._engine._object.read

    class Counted:
        def read(self, *arguments):
            decrypted.append(len(turns))
            return read_one(*arguments)

        def __getattr__(self, name):
            return getattr(engine_object, name)

    engine_object, right._engine._object = right._engine._object, Counted()

    async def others():
        while True:
            turns.append(None)
            await trio.lowlevel.checkpoint()

    async def receive():
        if way == "each":
            await receive_each(right, lambda each: found.append(each) or sum(map(len, found)) < 10_000)
        else:
            while sum(map(len, found)) < 10_000:
                found.append(await right.receive())

    for _ in range(10_000):
        left.send(b"x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await receive()
        nursery.cancel_scope.cancel()
    assert b"".join(found) == b"x" * 10_000
    # Two calls come between two checkpoints; a pass of the scheduler may begin with one task, and the next end with it.
    assert max(collections.Counter(decrypted).values()) <= 4 * RECORDS_MAX


@pytest.mark.parametrize("way", ["some", "into"])
async def test_one_turn_takes_all_that_has_arrived(pair, way):
    left, right = pair
    data, place = os.urandom(50_000), bytearray(50_000)
    left.send(data)
    await arrived(right._inner, 50_000)  # more than the first read takes
    if way == "some":
        assert await right.receive() == data
    else:
        assert await right.receive_into((memoryview(place), bytearray(16))) == 50_000
        assert place == data


async def test_bytes_are_received_into_buffers(pair):
    left, right = pair
    body, header = memoryview(bytearray(8)), bytearray(4)
    left.send(b"12345678head, and more")
    assert await right.receive_into((body, header)) == 12
    assert bytes(body) + header == b"12345678head"
    assert await right.receive() == b", and more"


async def test_bytes_are_handed_over_as_they_come(pair):
    left, right = pair
    data, found = os.urandom(3_000_000), []
    left.send(data)
    assert await receive_each(right, lambda each: found.append(each) or sum(map(len, found)) < 1_000_000)
    got = len(b"".join(found))
    assert 1_000_000 <= got < 3_000_000

    def take(each):
        found.append(each)
        if len(b"".join(found)) == len(data):
            left.finish()
        return True

    assert not await receive_each(right, take)
    assert b"".join(found) == data
    assert not await receive_each(right, take)


async def test_garbage_is_an_error_of_bytes_that_are_handed_over(pair):
    left, right = pair
    right._inner.send(b"\x17\x03\x03\x00\x05abcde")
    with pytest.raises(Unreachable), trio.fail_after(60):
        await receive_each(left, lambda _: True)


async def test_an_error_of_the_caller_comes_out(pair):
    left, right = pair
    left.send(b"data")
    with pytest.raises(ZeroDivisionError):
        await receive_each(right, lambda _: 1 / 0)


async def test_a_part_of_a_file(pair, tmp_path):
    left, right = pair
    data = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(data)
    closed = []
    with (tmp_path / "file").open("rb") as file:
        left.send_file(b"head", FilePart(file.fileno(), 1_000, 2_500_000, lambda: closed.append(True)))
        left.send(b"tail")
        assert await read(right, 2_500_008) == b"head" + data[1_000:2_501_000] + b"tail"
    assert closed == [True]


async def test_the_socket_takes_more_if_much_is_to_be_sent(pair):
    left, right = pair
    option = socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT
    before = left._inner._sock.getsockopt(*option)
    left.expect_bulk()
    assert before != left._inner._sock.getsockopt(*option) == 1024 * 1024
    left.send(b"data")
    assert await read(right, 4) == b"data"


async def test_a_file_that_ends_too_early_ends_the_connection(pair, tmp_path):
    left, right = pair
    (tmp_path / "file").write_bytes(b"short")
    closed = []
    with (tmp_path / "file").open("rb") as file:
        left.send_file(b"head", FilePart(file.fileno(), 0, 1_000, lambda: closed.append(True)))
    assert left.is_broken
    assert closed == [True]
    assert await right.receive() == b""


async def test_finish_tells_the_peer_and_leaves_the_other_direction(pair):
    left, right = pair
    left.send(b"last")
    left.finish()
    assert await read(right, 4) == b"last"
    assert await right.receive() == b""
    assert await right.receive() == b""
    left.close()
    assert await left.receive() == b""


async def test_after_finish_the_rest_is_read_and_dropped(pair, nursery):
    left, right = pair
    right.send(os.urandom(3_000_000))
    left.send(b"no")
    left.finish()

    async def leave():
        assert await read(right, 2) == b"no"
        assert await right.receive() == b""
        while right.backlog_bytes:
            await trio.lowlevel.checkpoint()
        right.finish()

    nursery.start_soon(leave)
    while await left.receive():
        pass


async def test_a_cut_connection_is_an_end(pair):
    left, right = pair
    left._inner.close()
    assert await right.receive() == b""


async def test_garbage_after_the_handshake(pair):
    left, right = pair
    left._inner.send(os.urandom(5_000))
    with pytest.raises(OSError, match="TLS failed"):
        await right.receive()
    right._inner.send(b"\x17\x03\x03\x00\x05abcde")
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        await left.receive()


async def test_a_cancelled_receive_loses_nothing(pair):
    left, right = pair
    data = os.urandom(400_000)
    left.send(data)
    found = b""
    while len(found) < len(data):
        with trio.CancelScope() as scope:
            scope.cancel()
            found += await right.receive()
        found += await right.receive()
    assert found == data


async def test_a_cancelled_handshake_closes_the_connection(authority):
    left, right = tcp_pair()
    inner = TcpTransport(left, "left")

    async def connect(_):
        return inner

    with trio.move_on_after(0.01):
        await connect_tls(connect, authority.client(), WHERE)
    assert inner.is_broken
    right.close()


async def answered(answer, client):
    """The error of a client that gets ``answer`` to the first bytes of its handshake."""
    async with trio.open_nursery() as nursery:
        listener = await listen_tcp("127.0.0.1", 0)

        async def say(transport):
            try:
                await transport.receive()
                transport.send(answer)
                transport.finish()
                await transport.receive()
            finally:
                transport.close()

        nursery.start_soon(listener.serve, say)

        async def connect(_):
            return await open_tcp(*listener.address)

        with pytest.raises((Unreachable, ProtocolError)) as caught:
            await connect_tls(connect, client, WHERE)
        nursery.cancel_scope.cancel()
    await listener.aclose()
    return caught.value


async def test_a_server_without_tls(authority):
    error = await answered(b"\x40\x00\x00\x00 a frame", authority.client())
    assert isinstance(error, ProtocolError)
    assert "does not speak TLS: use tailrace://" in str(error)


async def test_a_server_that_hangs_up(authority):
    error = await answered(b"", authority.client())
    assert isinstance(error, Unreachable)
    assert "before the TLS handshake was complete" in str(error)


async def test_a_host_that_no_certificate_can_name(authority):
    async def never(_):
        raise AssertionError

    with pytest.raises(ProtocolError, match="cannot be used with TLS"):
        await connect_tls(never, authority.client(), Address(".wrong", 1))


async def test_closing_gives_files_back(pair, tmp_path):
    left, right = pair
    (tmp_path / "file").write_bytes(bytes(8_000_000))
    closed = []
    with (tmp_path / "file").open("rb") as file:
        left.send(bytes(16_000_000))
        left.send_file(b"", FilePart(file.fileno(), 0, 8_000_000, lambda: closed.append(True)))
        assert left.backlog_bytes
        left.close()
    assert closed == [True]
    assert left.backlog_bytes == 0
    right.close()
