import contextlib
import gc
import os
import socket
import struct

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace.errors import Unreachable
from tailrace.trio import ready_sockets
from tailrace.trio.file_part import FilePart
from tailrace.trio.listener import listen_tcp
from tailrace.trio.tcp import RECEIVE_BYTES_MIN, TcpTransport, open_tcp
from tailrace.trio.transport import receive_each


@pytest.fixture
async def pair(nursery):
    """Both ends of a connection, flushed in the background."""
    left, right = tcp_pair()
    ends = TcpTransport(left, "left"), TcpTransport(right, "right")
    for end in ends:
        nursery.start_soon(end.run)
    yield ends
    for end in ends:
        end.close()


def tcp_pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = socket.create_connection(server.getsockname())
        right, _ = server.accept()
    return left, right


async def read(transport, count):
    data = b""
    while len(data) < count:
        more = await transport.receive()
        assert more, "it ended early"
        data += more
    return data


async def send_more_than_the_kernel_takes(left, right):
    """Sends so much that a part waits, and checks that all of it arrives in order."""
    drained = []
    left.on_drained = lambda: drained.append(left.backlog_bytes)
    parts = [os.urandom(100_000) for _ in range(200)]
    for part in parts[:100]:
        left.send(part)
    left.send(*parts[100:])
    assert left.backlog_bytes > 0
    assert await read(right, 20_000_000) == b"".join(parts)
    await trio.testing.wait_all_tasks_blocked()
    assert left.backlog_bytes == 0
    assert drained[-1] == 0


async def test_what_is_sent_is_received(pair):
    left, right = pair
    left.send(b"one", memoryview(b"two"))
    left.send(b"three")
    assert await read(right, 11) == b"onetwothree"
    right.send(b"back")
    assert await read(left, 4) == b"back"
    assert left.peer == "left"


@pytest.mark.slow
async def test_more_than_the_kernel_takes_waits_in_order(pair):
    await send_more_than_the_kernel_takes(*pair)


async def test_more_buffers_than_one_call_takes(pair):
    left, right = pair
    parts = [b"%d," % number for number in range(5000)]
    left.send(*parts)
    whole = b"".join(parts)
    assert await read(right, len(whole)) == whole


class StintingSocket:
    """Takes so many bytes of each call as ``takes`` tells, or raises its error; then it takes all."""

    def __init__(self, writable, takes):
        self.fileno = writable.fileno
        self._takes = iter(takes)
        self.taken = b""

    def send(self, data):
        take = next(self._takes, None)
        if isinstance(take, type):
            raise take
        self.taken += data[:take]
        return len(data[:take])

    def sendmsg(self, buffers):
        assert len(buffers) <= 1024, "the system takes no more"
        return self.send(b"".join(buffers))

    def setblocking(self, blocks):
        assert not blocks

    def setsockopt(self, *_): ...
    def shutdown(self, _): ...
    def close(self): ...


short = st.binary(max_size=5)
buffers = st.lists(short | short.map(memoryview), max_size=5)
many = st.integers(511, 1030).map(lambda count: [b"%d" % number * (number % 3) for number in range(count)])
# None: the tasks run until they wait.
sends = st.lists(st.none() | buffers | buffers | many, max_size=8)
takes = st.none() | st.integers(1, 10) | st.integers(1, 3000) | st.sampled_from([BlockingIOError, InterruptedError])


async def check_sends(sends, takes):
    """Sends, and compares what was taken and what waits with all that was sent."""
    writable, peer = socket.socketpair()
    sock = StintingSocket(writable, takes)
    transport, sent = TcpTransport(sock, "left"), b""

    def check():
        assert ConnectionResetError in takes or not transport.is_broken
        assert sent.startswith(sock.taken)
        assert transport.backlog_bytes == (0 if transport.is_broken else len(sent) - len(sock.taken))

    with writable, peer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.run)
            for each in sends:
                if each is None:
                    await trio.testing.wait_all_tasks_blocked()
                else:
                    transport.send(*each)
                    sent += b"".join(each)
                check()
            await trio.testing.wait_all_tasks_blocked()
            check()
            assert transport.is_broken or sock.taken == sent
            transport.close()
        was_taken = sock.taken
        transport.send(b"late")
        assert sock.taken == was_taken


@settings(max_examples=examples(200))
@given(sends, st.lists(takes, max_size=12), st.booleans())
def test_each_byte_leaves_once_and_in_order_however_much_a_call_takes(sends, takes, breaks):
    trio.run(check_sends, sends, [*takes, ConnectionResetError] if breaks else takes)


async def test_bytes_are_received_into_buffers(pair):
    left, right = pair
    body, header = memoryview(bytearray(8)), bytearray(4)
    left.send(b"12345678head")
    assert await right.receive_into((body, header)) == 12
    assert (bytes(body), header) == (b"12345678", b"head")
    left.send(b"abc")
    assert await right.receive_into((body, header)) == 3
    assert bytes(body) == b"abc45678"
    left.send(b"rest")
    assert await read(right, 4) == b"rest"
    left.close()
    assert await right.receive_into((body, header)) == 0


@pytest.mark.parametrize("before", [b"", b"read before"])
async def test_receiving_into_buffers_is_a_checkpoint(pair, before):
    left, right = pair
    if before:
        left.send(before)
        await read(right, len(before))
    left.send(b"there already")
    buffers = memoryview(bytearray(13)), bytearray(4)
    with trio.CancelScope() as scope:
        scope.cancel()
        await right.receive_into(buffers)
    assert scope.cancelled_caught
    assert await right.receive_into(buffers) == 13
    assert bytes(buffers[0]) == b"there already"


async def test_closing_wakes_who_receives_into_buffers(pair, nursery):
    _, right = pair
    received = []

    async def receive():
        received.append(await right.receive_into((memoryview(bytearray(8)), bytearray(4))))

    nursery.start_soon(receive)
    await trio.testing.wait_all_tasks_blocked()
    right.close()
    await trio.testing.wait_all_tasks_blocked()
    assert received == [0]


class Taker:
    """Takes bytes until ``enough`` of them are there."""

    def __init__(self, enough=1_000_000_000):
        self.enough = enough
        self.data = b""

    def __call__(self, data):
        self.data += data
        return len(self.data) < self.enough

    async def has(self, count):
        with trio.fail_after(60):
            while len(self.data) < count:
                await trio.lowlevel.checkpoint()
        return self.data


class Receiving:
    """A task that is in ``receive_each``, and what came of it."""

    def __init__(self, transport, take, nursery):
        self.results = []
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        nursery.start_soon(self._run, transport, take)

    async def _run(self, transport, take):
        with self.scope:
            try:
                self.results.append(await receive_each(transport, take))
            except Exception as error:
                self.results.append(error)
        self.ended.set()

    async def result(self):
        with trio.fail_after(60):
            await self.ended.wait()
        [result] = self.results
        return result


@pytest.fixture(params=["epoll", "without"])
def platform(request, monkeypatch):
    if request.param == "without":
        monkeypatch.setattr(ready_sockets, "HAS_EPOLL", False)
    elif not ready_sockets.HAS_EPOLL:
        pytest.skip("this platform has no epoll")


@pytest.mark.usefixtures("platform")
async def test_bytes_are_handed_over_until_the_taker_has_enough(pair, nursery):
    left, right = pair
    taker = Taker(enough=9)
    receiving = Receiving(right, taker, nursery)
    for count, data in ((3, b"one"), (6, b"two"), (9, b"three"[:3])):
        left.send(data)
        assert len(await taker.has(count)) == count
    assert await receiving.result() is True
    left.send(b"later")
    await trio.testing.wait_all_tasks_blocked()
    assert taker.data == b"onetwothr"
    taker = Taker(enough=5)
    assert await receive_each(right, taker)
    assert taker.data == b"later"


@pytest.mark.usefixtures("platform")
async def test_what_came_before_is_handed_over_and_then_the_end(pair):
    left, right = pair
    left.send(b"last words")
    left.close()
    taker = Taker()
    assert await receive_each(right, taker) is False
    assert taker.data == b"last words"
    right.close()
    assert await receive_each(right, taker) is False


@pytest.mark.usefixtures("platform")
async def test_an_error_of_the_taker_is_its_callers(pair, nursery):
    left, right = pair

    def take(data):
        raise ValueError(data.decode())

    receiving = Receiving(right, take, nursery)
    left.send(b"bad")
    assert str(await receiving.result()) == "bad"
    left.send(b"good")  # and another one can go on
    taker = Taker(enough=4)
    assert await receive_each(right, taker)


@pytest.mark.usefixtures("platform")
async def test_a_reset_is_raised_while_bytes_are_handed_over(pair, nursery):
    left, right = pair
    receiving = Receiving(right, Taker(), nursery)
    await trio.testing.wait_all_tasks_blocked()
    left._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    left.close()
    assert isinstance(await receiving.result(), ConnectionResetError)


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("where", ["outside", "in the taker"])
async def test_closing_wakes_who_is_handed_bytes(pair, nursery, where):
    left, right = pair

    def take(data):
        right.close()
        return True

    receiving = Receiving(right, take, nursery)
    await trio.testing.wait_all_tasks_blocked()
    if where == "outside":
        right.close()
    else:
        left.send(b"close")
    assert await receiving.result() is False


@pytest.mark.usefixtures("platform")
async def test_a_cancelled_task_is_handed_no_more(pair, nursery):
    left, right = pair
    taker = Taker()
    receiving = Receiving(right, taker, nursery)
    await trio.testing.wait_all_tasks_blocked()
    receiving.scope.cancel()
    await receiving.ended.wait()
    assert receiving.results == []
    left.send(b"for the next one")
    await trio.testing.wait_all_tasks_blocked()
    assert taker.data == b""
    taker = Taker(enough=16)
    assert await receive_each(right, taker)


async def test_sockets_of_which_nobody_waits_cost_nothing(pair, nursery):
    """The set is level-triggered: a socket whose bytes wait must not be in it."""
    left, right = pair
    left.send(b"waits")
    taker = Taker(enough=1)
    assert await receive_each(right, taker)
    left.send(b"waits too")
    await trio.testing.wait_all_tasks_blocked()  # it would never end if the set was looked at again and again
    assert await right.receive() == b"waits too"


async def test_a_taker_that_has_enough_ends_the_turn_of_all(nursery):
    """Others have the loop before the next socket is handled."""
    if not ready_sockets.HAS_EPOLL:
        pytest.skip("this platform has no epoll")
    pairs = [tcp_pair() for _ in range(3)]
    steps = []

    class Steps(trio.abc.Instrument):
        def before_task_step(self, task):
            steps.append(0)

    def take(data):
        steps[-1] += 1
        return False

    rights = [TcpTransport(right, "right") for _, right in pairs]
    receivings = [Receiving(right, take, nursery) for right in rights]
    await trio.testing.wait_all_tasks_blocked()
    trio.lowlevel.add_instrument(counted := Steps())
    for left, _ in pairs:
        left.send(b"all at once")
    for receiving in receivings:
        assert await receiving.result() is True
    trio.lowlevel.remove_instrument(counted)
    assert max(steps) == 1
    for left, _ in pairs:
        left.close()
    for right in rights:
        right.close()


async def test_reads_grow_while_they_come_back_full(pair):
    left, right = pair
    left.send(bytes(4_000_000))
    sizes = []
    while sum(sizes) < 4_000_000:
        sizes.append(len(await right.receive()))
    assert max(sizes) > RECEIVE_BYTES_MIN


async def arrived(transport, count):
    """Waits until ``count`` bytes can be received."""
    while len(transport._sock.recv(count, socket.MSG_PEEK)) < count:
        await trio.lowlevel.checkpoint()


async def test_what_has_arrived_is_received_without_waiting(pair):
    left, right = pair
    left.send(bytes(50_000))
    await arrived(right, 50_000)
    assert len(await right.receive()) == RECEIVE_BYTES_MIN
    found = [right.receive_now() for _ in range(3)]
    assert [len(each) for each in found] == [2 * RECEIVE_BYTES_MIN, 50_000 - 3 * RECEIVE_BYTES_MIN, 0]


@pytest.mark.parametrize("how", ["sent", "reset", "closed"])
async def test_receiving_without_waiting_never_tells_the_end(pair, how):
    left, right = pair
    left.send(bytes(RECEIVE_BYTES_MIN))
    await arrived(right, RECEIVE_BYTES_MIN)
    assert await read(right, RECEIVE_BYTES_MIN)
    if how == "reset":
        left._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    (right if how == "closed" else left).close()
    if how != "closed":
        await trio.lowlevel.wait_readable(right._sock)
    assert right.receive_now() == b""
    assert await right.receive() == b""


async def test_reads_stop_growing_at_a_bound(pair):
    left, right = pair
    right.receive_bytes_max = 4 * RECEIVE_BYTES_MIN
    left.send(bytes(4_000_000))
    sizes = []
    while sum(sizes) < 4_000_000:
        sizes.append(len(await right.receive()))
    assert max(sizes) == right.receive_bytes_max


async def test_the_end_is_seen_after_what_was_sent(pair):
    left, right = pair
    left.send(b"last words")
    left.close()
    left.close()
    assert await read(right, 10) == b"last words"
    assert await right.receive() == b""
    assert await left.receive() == b""
    left.send(b"into the void")
    assert left.backlog_bytes == 0


async def test_one_direction_may_end_before_the_other(pair):
    left, right = pair
    left.send(b"bye")
    left.finish()
    assert await read(right, 3) == b"bye"
    assert await right.receive() == b""
    right.send(b"and you")
    assert await read(left, 7) == b"and you"


async def test_closing_wakes_who_receives(pair):
    left, _ = pair
    results = []

    async def receive():
        results.append(await left.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        left.close()
    assert results == [b""]


async def test_a_peer_that_is_gone(pair):
    """Sending never raises; the end is seen by who receives, and nothing is kept."""
    left, right = pair
    right._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    right.close()
    for _ in range(50):
        left.send(bytes(1_000_000))
        await trio.lowlevel.checkpoint()
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        assert await left.receive() == b""
    assert left.backlog_bytes == 0


async def test_receiving_is_a_checkpoint(pair):
    left, right = pair
    left.send(b"there already")
    with trio.CancelScope() as scope:
        scope.cancel()
        await right.receive()
    assert scope.cancelled_caught
    assert await read(right, 13) == b"there already"


async def test_a_read_that_waits_at_once_can_be_cancelled(pair):
    """The last read has emptied the socket, so the next one waits before it tries; it is a checkpoint likewise."""
    left, right = pair
    left.send(b"first")
    assert await read(right, 5) == b"first"
    left.send(b"second")
    with trio.CancelScope() as scope:
        scope.cancel()
        await right.receive()
    assert scope.cancelled_caught
    assert await read(right, 6) == b"second"


async def test_a_read_that_waits_at_once_sees_that_it_is_closed(pair, nursery):
    left, right = pair
    left.send(b"word")
    assert await read(right, 4) == b"word"
    received = []

    async def receive():
        received.append(await right.receive())

    nursery.start_soon(receive)
    await trio.testing.wait_all_tasks_blocked()
    right.close()
    await trio.testing.wait_all_tasks_blocked()
    assert received == [b""]


@pytest.fixture
async def listener():
    made = await listen_tcp("127.0.0.1", 0)
    yield made
    await made.aclose()


async def test_a_listener_gives_each_connection_to_a_task(listener):
    async def echo(transport):
        transport.send(await transport.receive())
        transport.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve, echo)
        for word in (b"one", b"two"):
            transport = await open_tcp(*listener.address)
            assert transport.peer == "{}:{}".format(*listener.address)
            transport.send(word)
            assert await read(transport, 3) == word
            transport.close()
        nursery.cancel_scope.cancel()


async def test_a_connection_that_ends_before_it_is_accepted_leaves_nothing(listener):
    """accept gives a socket whose peer has gone: it is closed, and the next one is served."""
    peers = []

    async def handle(transport):
        peers.append(transport.peer)
        transport.close()

    gone = socket.create_connection(listener.address)
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.close()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve, handle)
        transport = await open_tcp(*listener.address)
        assert await transport.receive() == b""
        nursery.cancel_scope.cancel()
    transport.close()
    gc.collect()
    assert len(peers) == 1


async def test_nobody_listens():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        host, port = sock.getsockname()
        with pytest.raises(Unreachable, match=f"cannot connect to {host}:{port}: Connection refused"):
            await open_tcp(host, port)


# Parts of files


@pytest.fixture
def lent(tmp_path):
    """Makes a part of a file of random bytes; gives it with its bytes, and the times that it was given back."""

    def lend(nbytes, offset=0, *, missing=0):
        path = tmp_path / "file"
        path.write_bytes(os.urandom(offset + nbytes - missing))
        fd = os.open(path, os.O_RDONLY)
        closed = []

        def close():
            closed.append(True)
            os.close(fd)

        return FilePart(fd, offset, nbytes, close), path.read_bytes()[offset:], closed

    return lend


async def test_a_part_of_a_file_is_sent_between_buffers(pair, lent):
    left, right = pair
    part, data, closed = lent(5_000_000, 123)
    before, after = os.urandom(3_000_000), os.urandom(1_000)
    left.send(before)
    left.send_file(b"head", part)
    left.send(after)
    assert left.backlog_bytes > 0
    assert await read(right, 3_000_000 + 4 + len(data) + 1_000) == before + b"head" + data + after
    assert closed == [True]
    assert left.backlog_bytes == 0


async def test_a_small_part_leaves_at_once(pair, lent):
    left, right = pair
    part, data, closed = lent(1_000)
    left.send_file(b"head", part)
    assert (left.backlog_bytes, closed) == (0, [True])
    assert await read(right, 1_004) == b"head" + data


async def test_many_parts_one_after_the_other(pair, lent, tmp_path):
    left, right = pair
    data = os.urandom(100_000)
    (tmp_path / "file").write_bytes(data)
    closed = []
    for number in range(50):
        fd = os.open(tmp_path / "file", os.O_RDONLY)
        left.send_file(b"%02d" % number, FilePart(fd, 0, len(data), lambda fd=fd: (os.close(fd), closed.append(fd))))
    received = await read(right, 50 * (len(data) + 2))
    assert received == b"".join(b"%02d" % number + data for number in range(50))
    assert len(closed) == 50


@pytest.mark.parametrize("sends_files", [True, False])
async def test_a_socket_that_sends_much_takes_a_mib_that_is_not_on_its_way(lent, sends_files):
    sock, peer = tcp_pair()
    transport = TcpTransport(sock, "left")
    before = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
    if sends_files:
        part, _, _ = lent(10)
        transport.send_file(b"head", part)
    else:
        transport.expect_bulk()
        transport.expect_bulk()
    peer.close()
    assert before != sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 1024 * 1024
    transport.close()


async def test_a_file_that_is_too_short_breaks_the_connection(pair, lent):
    left, right = pair
    part, _, closed = lent(1_000, missing=10)
    left.send_file(b"head", part)
    left.send(b"more")
    with pytest.raises(AssertionError, match="ended early"):
        await read(right, 1_004)
    assert (closed, left.is_broken, left.backlog_bytes) == ([True], True, 0)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_part_is_given_back_when_the_connection_closes(pair, lent, when):
    left, _ = pair
    part, _, closed = lent(20_000_000)
    if when == "before":
        left.close()
    left.send_file(b"head", part)
    if when == "after":
        assert closed == []
        left.close()
    assert (closed, left.backlog_bytes) == ([True], 0)
