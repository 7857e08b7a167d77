"""A replica made by hand: it asks for streams and says what it has, and nothing of it is true."""

from __future__ import annotations

from tests.tailrace_server.raw_requests import PARTITION
from tests.tailrace_server.replication.conftest import CLUSTER_ID, OTHERS

from tailrace.model import Level
from tailrace.model.failover import FailoverLog
from tailrace.wire.frames import frame_header
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import Replica, ReplicaAck
from tailrace.wire.stream_messages import StreamRequest, decode_number, encode_number
from tailrace_server.feeds.feed import SYSTEM_FEED_ID

VOTERS = [Replica(bytes([n]) * 16, 1, str(address), True, CLUSTER_ID) for n, address in enumerate(OTHERS, 1)]
STREAM, SYSTEM_STREAM = 9, 8


def replica_request(feed_id, replica=VOTERS[0], partition=PARTITION, **fields):
    request = StreamRequest(feed_id, partition, FailoverLog(), 0, 0, 0, None, None, Level.MEMORY)
    return request._replace(replica=replica, **fields)


class HandMade:
    """What a replica says on one connection."""

    def __init__(self, connection, node, replica=VOTERS[0]):
        self.connection = connection
        self.node = node
        self.replica = replica

    async def follow(self, feed_id, partition=PARTITION, id=STREAM):
        await self.connection.send(replica_request(feed_id, self.replica, partition).encode(id))
        return await self.until(Opcode.STREAM_OK)

    async def follow_feeds(self):
        return await self.follow(SYSTEM_FEED_ID, 0, SYSTEM_STREAM)

    async def acknowledge(self, partition, seq=None, branch=None, id=STREAM):
        ack = ReplicaAck(partition.id, branch or partition.log.branch, partition.high_seq if seq is None else seq)
        await self.connection.send(ack.encode(id))

    async def confirm(self, number):
        await self.connection.send(encode_number(Opcode.LEADER_CONFIRM, number))

    async def confirm_next(self):
        """Answers the next question whether the node leads."""
        await self.confirm(decode_number((await self.until(Opcode.LEADER_CHECK)).body, ""))

    async def until(self, opcode):
        """The next frame of this kind; those before it are passed over."""
        while True:
            frame = await self.connection.receive()
            assert frame is not None, f"the connection ended before {opcode.name}"
            if frame.opcode is opcode:
                return frame

    async def handled(self):
        """Returns once the node has handled all that was said."""
        await self.connection.send(frame_header(Opcode.STATUS, 2, 77) + b"{}")
        await self.until(Opcode.RESULT)
