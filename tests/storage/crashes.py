"""Crashes at every call: a step is done once, and before each of its calls that change something the disk is copied.

    call    write ── write ── sync ── rename ── sync_directory
             │        │        │        │          │              each copy is what a crash there leaves:
            copy     copy     copy     copy       copy            killed, killed within the last write, power cut (n)

A node is started on each of them and compared with what the world had been told by then. Some then go on for a while,
crash again in the middle of their start, or stop cleanly, and are compared again.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.memory_disk import LOSE, READING

from .checks import check, check_running
from .engine import Engine
from .ledger import partitions_of

# Power cuts of each crash: one that loses all that was not synced, and the others lose some of it, by chance.
POWER_CUTS = 3


class Crash(NamedTuple):
    """The state before a call: what it was, and the copies. ``written`` is the file that the call before it wrote."""

    call: str
    disk: object
    ledger: object
    clock: object
    storage: object
    written: str


class Recorder:
    """Copies a disk and the ledger before each call that changes something, while it is entered."""

    def __init__(self, engine):
        self.crashes = []
        self._engine = engine
        self._written = ""

    def __enter__(self):
        self._engine.disk.before = self._before
        return self

    def __exit__(self, *error):
        self._engine.disk.before = None
        if error[0] is None:
            self._take("the end", "")

    def _before(self, name, path):
        if name not in READING:
            self._take(name, path)
            self._written = path if name == "write_at" else ""

    def _take(self, name, path):
        engine = self._engine
        clock = engine.clock.copy()
        self.crashes.append(
            Crash(f"{name} {path}", engine.disk.fork(), engine.ledger.copy(clock), clock, engine.storage, self._written)
        )


def tear(disk, path, rnd):
    """The process is killed within its last write, which was to ``path``."""
    inode = disk.names_now[path]
    if not inode.pending or not inode.pending[-1][1]:
        return
    offset, data = inode.pending[-1]
    inode.pending[-1] = offset, data[: rnd.randrange(len(data))]
    inode.content = inode.durable.copy()
    for change in inode.pending:
        inode.content.change(*change)


def endings(crash, rnd, power_cuts):
    """What the crash may leave: how, and a disk of its own."""
    disk = crash.disk.fork()
    disk.kill()
    yield "killed", disk
    if crash.written in crash.disk.names_now:
        disk = crash.disk.fork()
        tear(disk, crash.written, rnd)
        disk.kill()
        yield "killed within a write", disk
    for number in range(power_cuts):
        disk = crash.disk.fork()
        disk.cut_power(rnd if number else LOSE)
        yield f"power cut {number}", disk


async def crash_everywhere(crashes, seed, power_cuts=POWER_CUTS, *, in_turn=False):
    """Each ending of each crash is started and checked; how many starts that were.

    ``in_turn``: one ending of each crash, the kinds one after the other.
    """
    rnd = random.Random(seed)
    starts = 0
    for number, crash in enumerate(crashes):
        found = [*endings(crash, rnd, power_cuts)]
        for how, disk in [found[number % len(found)]] if in_turn else found:
            try:
                starts += await restart(crash, disk, rnd)
            except BaseException as error:
                error.add_note(f"seed {seed}: {how} before call {number} of {len(crashes)}, {crash.call}")
                raise
    return starts


async def restart(crash, disk, rnd):
    """Starts the node after one ending of a crash; how many starts there were."""
    clock = crash.clock.copy()
    ledger = crash.ledger.copy(clock)
    engine = Engine(disk, rnd.getrandbits(32), ledger=ledger, clock=clock, storage=crash.storage)
    choice = rnd.random()
    if choice < 0.1:
        return await crash_in_start(engine, rnd)
    engine.open()
    check(engine)
    if choice < 0.3:
        return 1 + await go_on(engine, rnd)
    return 1


async def crash_in_start(engine, rnd):
    """The machine stops again in the start, at any call."""
    with Recorder(engine) as recorder:
        engine.open()
    crash = rnd.choice(recorder.crashes)
    clock = crash.clock.copy()
    disk = crash.disk.fork()
    if rnd.random() < 0.5:
        disk.cut_power(rnd)
    else:
        disk.kill()
    again = Engine(disk, rnd.getrandbits(32), ledger=crash.ledger.copy(clock), clock=clock, storage=crash.storage)
    again.open()
    check(again)
    return 2


async def go_on(engine, rnd):
    """Some more writes, a flush, a fold; then a stop of any kind, and another start."""
    engine.disk.size_bytes = max(engine.disk.size_bytes, 1 << 30)
    for partition in partitions_of(engine.node):
        name, number = engine.feed_info(partition).name, partition.id
        for key in engine.keys_of(name, number, 3):
            engine.write(name, [key, b"-" + key][: rnd.randint(1, 2)], number=number, producer=rnd.choice((1, 2)))
    await engine.sync()
    if rnd.random() < 0.5:
        engine.clock.advance(100)
        await engine.tend()
        assert not engine.node.storage.flusher.failure, engine.node.storage.flusher.failure
        assert not engine.node.storage.compactor.failure, engine.node.storage.compactor.failure
    check_running(engine)
    if rnd.random() < 0.3:
        engine.stop()
    elif rnd.random() < 0.5:
        engine.disk.kill()
    else:
        engine.disk.cut_power(rnd)
    again = Engine(
        engine.disk, rnd.getrandbits(32), ledger=engine.ledger, clock=engine.clock, storage=engine.storage
    ).open()
    check(again)
    return 1
