"""One peer among others: what it may do before others have their turn, counted in requests and passes of the loop."""

import collections
import math
import socket
import struct

import pytest
import trio
from tests.fake_host import fsync_on_loop
from tests.tailrace_server.raw_requests import KEY, block_of, expect_end, write
from tests.tailrace_server.replication.made_set import until

from tailrace.errors import TooLarge
from tailrace.model import Level
from tailrace.model.failover import FailoverLog
from tailrace.wire.bodies import encode_json
from tailrace.wire.bounds import request_bound
from tailrace.wire.frames import encode_frame, frame_header
from tailrace.wire.messages import Get, Hello
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import StreamRequest, encode_number
from tailrace_server.serving.connection import CUT_FRAMES_MAX, TURN_SECONDS, Connection
from tailrace_server.serving.handlers import HANDLERS

pytestmark = pytest.mark.usefixtures("others_are_served")

# Of a peer that is gone: it is noticed when an answer cannot be sent, one turn after the first that was lost, and the
# answers of writes wait for an fsync, during which others are handled.
GONE_REQUESTS_MAX = 200


def port_of(connection):
    """The port that a `RawClient` has at its side."""
    return connection.stream.socket.getsockname()[1]


class Steps(trio.abc.Instrument):
    """Counts what one step of a task does for each connection: between two checkpoints nobody else has the loop."""

    def __init__(self):
        self.now = collections.Counter()
        self.most = self.total = 0

    def after_task_step(self, task):
        self.most = max(self.most, *self.now.values(), 0)
        self.now.clear()

    def count(self, connection):
        self.now[connection] += 1
        self.total += 1


@pytest.fixture
def costly(monkeypatch, node):
    """A function that has each request take ``seconds`` by the node's clock; gives the `Steps` that count them."""
    steps = Steps()
    trio.lowlevel.add_instrument(steps)

    def make(seconds):
        passed = 0.0
        before, real = Connection._handle, node.host.clock.monotonic

        def handle(connection, frame):
            nonlocal passed
            passed += seconds
            steps.count(connection)
            before(connection, frame)

        monkeypatch.setattr(Connection, "_handle", handle)
        began = real()
        monkeypatch.setattr(node.host.clock, "monotonic", lambda: began + passed)
        return steps

    yield make
    trio.lowlevel.remove_instrument(steps)


def cheap_requests(feed_id):
    """A cheap request of each kind, by name, as a function of its number."""
    stream = StreamRequest(feed_id, 0, FailoverLog(), 0, 0, 0, None, None, Level.DISK)
    return {
        "STATUS": lambda n: encode_json(Opcode.STATUS, {}, n),
        "LIST_FEEDS": lambda n: encode_json(Opcode.LIST_FEEDS, {}, n),
        "PARTITIONS": lambda n: encode_json(Opcode.PARTITIONS, {"name": "orders"}, n),
        "of no feed": lambda n: encode_json(Opcode.PARTITIONS, {"name": "none"}, n),
        "NOOP": lambda n: encode_frame(Opcode.NOOP),
        "CREDIT": lambda n: encode_number(Opcode.CREDIT, 1),
        "STREAM_CLOSE": lambda n: encode_frame(Opcode.STREAM_CLOSE, b"", 1 << 20 | n),
        "STREAM_REQUEST": lambda n: stream.encode(n) + encode_frame(Opcode.STREAM_CLOSE, b"", n),
        "EXPLAIN_RESUME": lambda n: encode_json(Opcode.EXPLAIN_RESUME, stream.to_json(), n),
        "GET": lambda n: Get(feed_id, Level.MEMORY, [KEY]).encode(n),
        "WRITE": lambda n: encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY, number=n)), n),
        "BARRIER": lambda n: encode_frame(Opcode.BARRIER, b"%d" % n),
        "HELLO": lambda n: Hello().encode(),
    }


KINDS = sorted(cheap_requests(bytes(16)))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_flood_of_cheap_requests_lets_others_have_their_turn(raw, greeted, feed_id, costly, kind):
    """Each takes a quarter of a turn, or a little more: others wait for four of them, not for all of one read."""
    request = cheap_requests(feed_id)[kind]
    steps = costly(1.001 * TURN_SECONDS / 4)  # four are a turn, however their sum is rounded
    flood = b"".join(request(number) for number in range(1, 401))
    async with raw() as other, trio.open_nursery() as nursery:
        await other.hello()
        nursery.start_soon(greeted.send, flood)
        before = steps.total
        for _ in range(3):
            assert (await other.ask(Opcode.LIST_FEEDS, b"{}", 7)).id == 7
        assert steps.most <= 4
        assert steps.total - before < 400
        nursery.cancel_scope.cancel()


async def test_a_read_is_cut_into_frames_a_few_at_a_time(greeted, node, monkeypatch):
    """65,536 frames in one read would take 15 MiB."""
    [connection] = [c for c in node.connections if c.greeted]
    cut, real = [], connection.decoder.next_frames

    def next_frames(frames_max):
        frames = real(frames_max)
        cut.append(len(frames))
        return frames

    monkeypatch.setattr(connection.decoder, "next_frames", next_frames)
    await greeted.send(encode_frame(Opcode.NOOP) * 20_000)
    assert (await greeted.ask(Opcode.LIST_FEEDS, b"{}", 7)).id == 7
    assert sum(cut) == 20_001
    assert max(cut) == CUT_FRAMES_MAX


@pytest.mark.parametrize("kind", ["STATUS", "GET", "WRITE", "BARRIER"])
@pytest.mark.parametrize("how", ["closed", "reset"])
async def test_nothing_more_is_done_for_a_peer_that_is_gone(raw, node, feed_id, costly, kind, how):
    """What it has sent before it went is not handled to its end: each takes a turn, so that its going is noticed."""
    # During an fsync in a thread as many requests are handled as the machine has time for, whatever the turns are.
    # One for the feed may still be due, or under way.
    committer, journal = node.storage.committer, node.storage.journal
    fsync_on_loop(committer)
    await until(lambda: journal.synced == journal.written and not committer.busy_s(math.inf))
    request = cheap_requests(feed_id)[kind]
    async with raw() as connection:
        await connection.hello()
        [served] = [c for c in node.connections if c.transport.peer.endswith(f":{port_of(connection)}")]
        steps = costly(TURN_SECONDS)
        flood = b"".join(request(number) for number in range(1, 10_001))
        connection.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(flood))
        assert await connection.stream.socket.send(flood) > 2 * GONE_REQUESTS_MAX * len(request(10_000))
        if how == "reset":
            connection.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    before = steps.total
    while served in node.connections:
        await trio.lowlevel.checkpoint()
    assert steps.total - before <= GONE_REQUESTS_MAX


# Bounds of each request


@pytest.mark.parametrize("opcode", sorted(HANDLERS))
async def test_a_request_above_its_bound_is_refused_by_its_header(greeted, node, opcode, monkeypatch):
    """Nothing of its body is collected, or parsed."""
    monkeypatch.setitem(HANDLERS, opcode, None)
    [connection] = [c for c in node.connections if c.greeted]
    bound = request_bound(opcode)
    await greeted.send(frame_header(opcode, bound + 1, 3))
    await expect_end(greeted, TooLarge, f"{opcode.name} of {bound + 1} bytes; at most {bound} are accepted")
    assert connection.decoder.held_bytes <= 16


@pytest.mark.parametrize("opcode", sorted(set(HANDLERS) - {Opcode.HELLO}))
async def test_a_request_at_its_bound_is_read(greeted, opcode, monkeypatch):
    bodies = []
    monkeypatch.setitem(HANDLERS, opcode, lambda connection, frame: bodies.append(len(frame.body)))
    bound = request_bound(opcode)
    await greeted.send(frame_header(opcode, bound, 3), bytes(bound))
    assert (await greeted.ask(Opcode.LIST_FEEDS if opcode is not Opcode.LIST_FEEDS else Opcode.STATUS, b"{}")).id == 1
    assert bodies == [bound]
