"""Faults of fetches: their program, its disk, the bytes on their way, and what the node keeps for them."""

from __future__ import annotations

import errno

import trio
from tests.memory_disk import failure

from tailrace.wire.frames import FRAME_HEADER_BYTES, frame_header
from tailrace.wire.opcodes import Opcode


async def kill_fetch(faults):
    """Ends a program that fetches at once, or before one of the next calls of its disk."""
    fetcher, power = faults.random.choice(faults.world.fetchers), faults.random.random() < 0.5
    chance = faults.random.random()
    if chance < 0.4:  # in the installation
        fetcher.crash_at_call(faults.random.randrange(8), power=power, where="CHECKPOINT")
    elif chance < 0.8:
        fetcher.crash_at_call(faults.random.randrange(faults.random.choice((3, 10, 30))), power=power)
    else:
        faults.world.report.fault("fetch killed", fetcher.name)
        fetcher.kill(faults.random.random(), power=power)


async def full_fetch(faults):
    """Fills the disk of a program that fetches, at once or in the middle of it, and makes room later."""
    fetcher, free_bytes = faults.random.choice(faults.world.fetchers), faults.random.randint(0, 3_000)

    def fill(path):
        faults.world.report.fault("full disk of a fetch", f"{fetcher.name} {path}")
        fetcher.disk.failures += 1
        fetcher.disk.fill(free_bytes)

    if faults.random.random() < 0.3:
        fill("")
    else:
        fetcher.disk.after_calls(faults.random.randrange(faults.random.choice((3, 20))), fill)
    await trio.sleep(2.0 * faults.random.random())
    fetcher.disk.mend()


async def failing_fetch(faults):
    """Lets one call of the disk of a program that fetches fail."""
    fetcher = faults.random.choice(faults.world.fetchers)

    def fail(path):
        faults.world.report.fault("disk error of a fetch", f"{fetcher.name} {path}")
        fetcher.disk.failures += 1
        raise failure(errno.EIO, path)

    fetcher.disk.after_calls(faults.random.randrange(faults.random.choice((3, 20))), fail)


async def harm(faults):
    """Damages parts of segments on their way, for a while."""
    chance = faults.random.choice((0.01, 0.05, 0.3))
    faults.network.harm = Harm(faults, chance)
    await trio.sleep(faults.random.choice((0.3, 2.0)) * faults.random.random())
    faults.network.harm = None


class Harm:
    """Changes the parts of segments that nodes send: a bit flips, the connection ends within one, or one is shorter."""

    def __init__(self, faults, chance):
        self._world = faults.world
        self._random = faults.random
        self._chance = chance

    def __call__(self, transport, data):
        """Returns what is sent instead of whole frames, and whether the connection ends there."""
        sent, place = bytearray(data), 0
        while place + FRAME_HEADER_BYTES <= len(sent):
            nbytes = int.from_bytes(sent[place : place + 4], "little")
            body = place + FRAME_HEADER_BYTES
            if sent[place + 4] == Opcode.SEGMENT_DATA and self._random.random() < self._chance:
                kind = self._random.choice((self._flip, self._flip, self._truncate, self._shorten))
                self._world.network.harmed += 1
                self._world.report.fault(f"transfer: {kind.__name__[1:]}")
                return kind(sent, place, body, nbytes)
            place = body + nbytes
        return data, False

    def _flip(self, sent, place, body, nbytes):
        sent[body + self._random.randrange(nbytes)] ^= 1 << self._random.randrange(8)
        return bytes(sent), False

    def _truncate(self, sent, place, body, nbytes):
        return bytes(sent[: body + self._random.randrange(nbytes)]), True

    def _shorten(self, sent, place, body, nbytes):
        """Makes a frame that has fewer bytes than were asked for, as a node with a bug would."""
        left = self._random.randrange(nbytes)
        id_ = int.from_bytes(sent[place + 8 : place + 12], "little")
        return bytes(sent[:place]) + frame_header(Opcode.SEGMENT_DATA, left, id_) + bytes(
            sent[body : body + left] + sent[body + nbytes :]
        ), False


async def forget_checkpoints(faults):
    """Lets a node drop the checkpoints that keep replaced segments, as if its disk were nearly full."""
    machine = faults.machine()
    if machine.is_up:
        faults.world.report.fault("checkpoints dropped", machine.name)
        machine.life.node.storage.checkpoints.release_replaced()


FAULTS = (kill_fetch, full_fetch, failing_fetch, harm, forget_checkpoints)
