"""A connection to another node for its segments: checkpoints, and parts of files."""

from __future__ import annotations

import collections
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tailrace.copies.compare import Part
from tailrace.errors import NotLeader, ProtocolError
from tailrace.link.address import Address
from tailrace.trio.transport import Transport
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import CheckpointRequest, PartitionCheckpoint, SegmentFetch, SegmentRelease
from tailrace_server.replication.peer_connection import PeerConnection, connected_peer

if TYPE_CHECKING:
    from tailrace_server.replication.local_node import LocalNode


@asynccontextmanager
async def segment_source(
    node: LocalNode, address: Address, role: str, term: int, timeout_s: float
) -> AsyncIterator[SegmentSource]:
    """A connection to the node at ``address``, which has to be in ``role`` and ``term``, while the body runs.

    Raises Unreachable, OSError, Forbidden if the node is of another cluster, NotLeader if it has changed its role.
    """
    async with connected_peer(SegmentSource, node, address, "segments", timeout_s) as (source, peer):
        if (peer.role, peer.term) != (role, term):
            raise NotLeader(f"{address} is {peer.role} in term {peer.term} now, not {role} in term {term}")
        yield source


class SegmentSource(PeerConnection):
    """One task uses it. Parts may be asked for before the ones before have come: the answers keep the order."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self._asked: collections.deque[tuple[int, SegmentFetch]] = collections.deque()

    async def checkpoint(self, request: CheckpointRequest) -> PartitionCheckpoint:
        """Asks for a checkpoint. Raises the node's error, or ProtocolError if it is of another partition."""
        self._id += 1
        self._transport.send(encode_json(Opcode.SEGMENT_CHECKPOINT, request.to_json(), self._id))
        frame = await self._next()
        if (frame.opcode, frame.id) != (Opcode.RESULT, self._id):
            raise ProtocolError(f"the answer to SEGMENT_CHECKPOINT is {frame.opcode.name}")
        told = PartitionCheckpoint.from_json(decode_json(frame.body, "RESULT"))
        if (told.feed_id, told.partition) != (request.feed_id, request.partition):
            raise ProtocolError(
                f"the node has told a checkpoint of partition {told.partition} of the feed {told.feed_id.hex()}"
            )
        return told

    def ask(self, checkpoint_id: bytes, parts: Iterable[Part]) -> None:
        """Asks for parts of the files of a checkpoint. Never waits."""
        for part in parts:
            self._id += 1
            fetch = SegmentFetch(checkpoint_id, part.segment.id, part.offset, part.nbytes)
            self._asked.append((self._id, fetch))
            self._transport.send(fetch.encode(self._id))

    async def receive(self, parts: Sequence[Part]) -> list[tuple[Part, memoryview]]:
        """Returns the bytes of ``parts``, the first ones that were asked for and have not come. Raises the error."""
        received = []
        for part in parts:
            id, fetch = self._asked.popleft()
            frame = await self._next()
            if frame.id != id:
                raise ProtocolError(f"the answer to SEGMENT_FETCH {id} is {frame.opcode.name} {frame.id}")
            received.append((part, fetch.decode_answer(frame)))
        return received

    def release(self, release: SegmentRelease) -> None:
        """Tells the node that the files are not needed any more. Never waits, also not for the answer."""
        self._id += 1
        self._transport.send(encode_json(Opcode.SEGMENT_RELEASE, release.to_json(), self._id))
