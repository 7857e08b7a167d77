"""A replica's stream from a node that leads, over TCP."""

import pytest
import trio
import trio.testing

from tailrace.consuming.events import Agreed, Mutations, SnapshotEnd, SnapshotStart
from tailrace.errors import NotLeader, Unreachable
from tailrace.link.address import Address
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.testing.ports import free_port
from tailrace.trio.replica import CopyOptions
from tailrace.trio.replica_link import replica_link
from tailrace.wire.bodies import encode_json
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.messages import HelloOk
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import LeaderSeqs, Replica, ReplicaAck
from tailrace.wire.stage_messages import SinksTold
from tailrace.wire.stream_messages import StreamOk, StreamRequest, decode_number, encode_number

FEED, CLUSTER, U = b"f" * 16, b"c" * 16, b"u" * 16
LOG = FailoverLog([(U, 1, 0)])
REPLICA = Replica(b"p" * 16, 1, "", False, b"c" * 16)
NOWHERE = Positions(bytes(16), FEED, {0: Position.at(FailoverLog(), 0)})


class Leader:
    """Answers as a leader does up to an open stream; what comes after is for the test."""

    def __init__(self, **hello):
        self.hello = HelloOk(1, "0" * 32, CLUSTER.hex(), "", 1 << 25, 10.0, ("memory",), **hello)
        self.heard = []
        self.changed = trio.Event()
        self.stream = None
        self.connections = 0
        self._lock = trio.Lock()

    async def say(self, data):
        async with self._lock:
            await self.stream.send_all(data)

    async def handle(self, stream):
        self.stream, decoder = stream, FrameDecoder()
        self.connections += 1
        async for data in stream:
            for frame in decoder.receive_data(bytes(data)):
                answer = self.answer(frame)
                if answer:
                    await self.say(answer)

    def answer(self, frame):
        if frame.opcode is Opcode.HELLO:
            return self.hello.encode()
        if frame.opcode is Opcode.PARTITIONS:
            found = {"feed": {"feed_id": FEED.hex()}, "partitions": [{"id": 0, "high_seq": 9}]}
            return encode_json(Opcode.RESULT, found, frame.id)
        if frame.opcode is Opcode.STREAM_REQUEST:
            assert StreamRequest.decode(frame.body).replica == REPLICA
            return StreamOk(0, 0, LOG, 9).encode(frame.id)
        if frame.opcode is not Opcode.NOOP:
            self.heard.append((frame.opcode, frame.id, bytes(frame.body)))
            self.changed.set()
        return b""


@pytest.fixture
def listen(nursery):
    async def begin(**hello):
        leader = Leader(**hello)
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, leader.handle, [listener])
        return leader, Address(*listener.socket.getsockname())

    return begin


async def test_a_stream_with_what_nodes_say_to_each_other(listen):
    leader, address = await listen()
    checks = []
    async with replica_link(address, REPLICA, on_check=checks.append) as link:
        assert link.peer.cluster_id == CLUSTER.hex()
        stream = link.copy("orders", NOWHERE, CopyOptions((0,)))
        assert await anext(stream) == Agreed(0, LOG, 9)
        await leader.say(encode_number(Opcode.LEADER_CHECK, 3) + LeaderSeqs(0, 8, 7).encode(1))
        assert await anext(stream) == LeaderSeqs(0, 8, 7)
        assert checks == [3]
        link.confirm(3)
        stream.acknowledge(0, U, 8)
        link.flush()
        while len(leader.heard) < 2:
            leader.changed = trio.Event()
            await leader.changed.wait()
        (confirm, _, number), (ack, stream_id, body) = leader.heard
        assert (confirm, decode_number(number, "")) == (Opcode.LEADER_CONFIRM, 3)
        assert (ack, stream_id, ReplicaAck.decode(body)) == (Opcode.REPLICA_ACK, 1, (0, U, 8))
        await leader.stream.send_eof()
        with pytest.raises(Unreachable):
            await anext(stream)
        with pytest.raises(Unreachable):
            await link.ended()
    assert leader.connections == 1


async def test_a_node_that_does_not_lead(listen):
    leader, address = await listen(role="follower", leader="node-c:4700")
    with pytest.raises(NotLeader) as caught:
        async with replica_link(address, REPLICA):
            pass
    assert caught.value.leader == "node-c:4700"
    assert leader.connections == 1


async def test_nobody_there():
    address = Address("127.0.0.1", free_port())
    with pytest.raises(Unreachable):
        async with replica_link(address, REPLICA):
            pass


async def test_a_node_that_says_hello_and_answers_nothing(listen, autojump_clock):
    leader, address = await listen()
    leader.answer = lambda frame: leader.hello.encode() if frame.opcode is Opcode.HELLO else b""
    async with replica_link(address, REPLICA, timeout_s=5.0) as link:
        stream = link.copy("orders", NOWHERE, CopyOptions((0,)))
        with pytest.raises(Unreachable, match="has not answered within 5 s"):
            await anext(stream)


async def test_what_is_slow_with_one_feed_holds_up_no_check_and_no_other_feed(listen):
    """No task takes the events of the first feed."""
    leader, address = await listen()
    checked = trio.Event()
    async with replica_link(address, REPLICA, on_check=lambda number: checked.set()) as link:
        link.copy("orders", NOWHERE, CopyOptions((0,)))
        other = link.copy("others", NOWHERE, CopyOptions((0,)))
        assert await anext(other) == Agreed(0, LOG, 9)
        await leader.say(b"".join(SinksTold(0, seq, {}).encode(1) for seq in range(1000)))
        await leader.say(encode_number(Opcode.LEADER_CHECK, 3) + LeaderSeqs(0, 8, 7).encode(2))
        await checked.wait()
        assert await anext(other) == LeaderSeqs(0, 8, 7)


async def test_a_partition_map_that_never_comes_since_the_connection_ends(listen, autojump_clock):
    leader, address = await listen()
    answered = leader.answer
    asked = trio.Event()

    def answer(frame):
        if frame.opcode is not Opcode.PARTITIONS:
            return answered(frame)
        asked.set()
        return b""

    leader.answer = answer
    async with replica_link(address, REPLICA, timeout_s=600.0) as link:
        stream = link.copy("orders", NOWHERE, CopyOptions((0,)))
        assert await anext(stream) == Agreed(0, LOG, 9)
        with trio.fail_after(300):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(raises, Unreachable, stream.partition_map)
                await asked.wait()
                await leader.stream.send_eof()
        await raises(Unreachable, stream.partition_map)  # nor after the end


async def test_a_partition_map_that_never_comes_since_the_feed_is_left(listen, autojump_clock):
    leader, address = await listen()
    answered = leader.answer
    leader.answer = lambda frame: b"" if frame.opcode is Opcode.PARTITIONS else answered(frame)
    async with replica_link(address, REPLICA, timeout_s=600.0) as link:
        stream = link.copy("orders", NOWHERE, CopyOptions((0,)))
        assert await anext(stream) == Agreed(0, LOG, 9)
        with trio.fail_after(300):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(raises, Unreachable, stream.partition_map)
                await trio.testing.wait_all_tasks_blocked()
                stream.leave()
            await raises(Unreachable, stream.partition_map)


async def raises(error, call):
    with pytest.raises(error):
        await call()


async def test_from_a_node_as_it_is(feed, running):
    """A node that stands alone serves who only names itself as a replica."""
    await feed.put(b"k", b"v")
    resolved = await feed.resolve()
    positions = Positions(bytes(16), resolved.feed_id, {})
    address = Address(*running.config.listen)
    kinds, rows = set(), 0
    replica = REPLICA._replace(term=0, cluster_id=running.node.identity.cluster_id)
    async with replica_link(address, replica) as link:
        async for event in link.copy(feed.name, positions):
            kinds.add(type(event))
            if isinstance(event, Mutations):
                rows += len(event)
                assert list(event.block.columns().keys()) == [b"k"]
            if isinstance(event, SnapshotEnd):
                break
    assert rows == 1
    assert kinds == {Agreed, SnapshotStart, Mutations, SnapshotEnd}
