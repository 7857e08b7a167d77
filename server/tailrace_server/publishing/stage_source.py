"""Copies one sealed stage from another node of the cluster, by a connection of its own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from tailrace.errors import ProtocolError, UnknownStage, Unreachable
from tailrace.link.address import Address
from tailrace.wire.stage_copy_messages import StageData, StageFetch
from tailrace_server.replication.peer_connection import PeerConnection, connected_peer

if TYPE_CHECKING:
    from tailrace_server.publishing.stage_copy import StageCopy
    from tailrace_server.publishing.stages import Stages
    from tailrace_server.replication.local_node import LocalNode

# A node that has sent no part of a stage for these seconds has stopped, or its machine is gone. The connection would
# notice that later, and until then the copy takes the turn of another one.
STALLED_S = 10.0


class StageSource(PeerConnection):
    """A connection to a node that has sealed stages."""

    async def part(self, fetch: StageFetch) -> StageData:
        """Returns a part of a stage's file. Raises UnknownStage if the node does not have it, Unreachable, ..."""
        self._id += 1
        self._transport.send(fetch.encode(self._id))
        with trio.move_on_after(STALLED_S) as scope:
            frame = await self._next()
        if scope.cancelled_caught:
            raise Unreachable(f"{self._transport.peer} has sent no part of a stage for {STALLED_S:g} s")
        if frame.id != self._id:
            raise ProtocolError(f"the answer to STAGE_FETCH {self._id} is {frame.opcode.name} {frame.id}")
        return StageData.decode(frame, fetch)


async def copy_stage(node: LocalNode, stages: Stages, feed_id: bytes, id: bytes, address: Address) -> None:
    """Copies a sealed stage from the node at ``address``. It is on this disk when this returns.

    Raises UnknownStage if that node does not have it, Forbidden if it is of another cluster, Unreachable, Overloaded or
    NoSpace without room here, ...
    """
    try:
        timeout_s = node.config.replication.step_timeout_s
        async with connected_peer(StageSource, node, address, "stages", timeout_s) as (source, _):
            first = await source.part(StageFetch(feed_id, id, 0))
            copy = stages.begin_copy(feed_id, id, first.file_bytes)
            sealed = None
            try:
                await _receive(node, copy, source, first.data)
                with trio.CancelScope(shield=True):  # else the disk may have a stage that `Stages` has not noted
                    sealed = await node.host.workers.in_thread(partial(copy.seal, node.host.clock.monotonic()))
            finally:
                with trio.CancelScope(shield=True):
                    await node.host.workers.in_thread(copy.close)
                stages.end_copy(copy, sealed)
    except OSError as error:
        raise Unreachable(f"the connection to {address} broke: {error}") from error


async def _receive(node: LocalNode, copy: StageCopy, source: StageSource, data: bytes | memoryview) -> None:
    """Writes ``data``, the first part of the file, and all parts behind it."""
    while True:
        await node.host.workers.in_thread(partial(copy.write, data))
        if copy.is_complete:
            return
        data = (await source.part(StageFetch(copy.feed_id, copy.id, copy.written_bytes))).data
        if not data:
            raise UnknownStage(f"stage {copy.id.hex()} ends at byte {copy.written_bytes} of {copy.nbytes}")
