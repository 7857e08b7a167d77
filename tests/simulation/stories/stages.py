"""Stories of stages that were sealed at level quorum: their leader is lost before the batch is published."""

from __future__ import annotations

from tailrace.wire.opcodes import Opcode

from .stage import Stage
from .story import Story

# In the footer of a stage's file: where the index begins, which stands behind the last block.
_FOOTER_BYTES, _INDEX_OFFSET = 64, slice(16, 24)


async def leader_lost_after_a_seal(world):
    """The leader dies after a seal, and a member leads that lacks a stage: it gets the stage from the other member."""

    async def choose(stage, names, sink):
        return min(names, key=lambda name: _holds(stage, name, sink))

    await _lose_leaders(world, choose)


async def power_cut_after_a_seal(world):
    """The leader dies after a seal, a member with a copy loses all that was not synced, and leads."""

    async def lose(stage, names, sink):
        name = max(names, key=lambda name: _holds(stage, name, sink))
        await stage.lose(name)
        await stage.begin(name)
        return name

    await _lose_leaders(world, lose)


async def flipped_stage(world):
    """A bit of a block flips on its way to the member that copies the stage; that member leads after the leader."""
    flips = Flips(world)

    async def choose(stage, names, sink):
        return flips.receiver if flips.receiver in names else names[0]

    await _lose_leaders(world, choose, times=1)


class Flips:
    """Flips a bit of the last block in the first copy of a stage. ``receiver``: the name of who got it."""

    def __init__(self, world):
        self.receiver = None
        self._world = world
        world.transfers.arm(Opcode.STAGE_DATA, self._flip)

    def _flip(self, frame):
        self.receiver = frame.receiver
        self._world.transfers.disarm(Opcode.STAGE_DATA, self._flip)
        data = bytearray(frame.data)
        index_offset = int.from_bytes(data[-_FOOTER_BYTES:][_INDEX_OFFSET], "little")
        data[len(data) - int.from_bytes(frame.body[:8], "little") + index_offset - 1] ^= 1
        return bytes(data), False


async def _lose_leaders(world, choose, times=2):
    """Kills the leader after a seal, and promotes the member that is chosen; the driver publishes then."""
    [sink] = world.sinks
    sink.be_undisturbed()
    stage = Stage(world)
    for _ in range(times):
        sink.hold_publishes()
        await stage.until(lambda: sink.waiting)
        leader = next(name for name in stage.three if world.leads(stage.machine(name)))
        others = [name for name in stage.three if name != leader]
        await stage.end(leader)
        await stage.promote(await choose(stage, others, sink))
        answers = sink.answers
        sink.let_publish()
        await stage.until(lambda answers=answers: sink.answers > answers)
        await stage.begin(leader)


def _holds(stage, name, sink):
    """Returns how many of the stages that wait for their publish are on a node."""
    return len(stage.node(name).stages.held(stage.feed_id, sink.waiting))


STORIES = [
    Story(tell, has_sink=True, seals_at_quorum=True)
    for tell in (leader_lost_after_a_seal, power_cut_after_a_seal, flipped_stage)
]
