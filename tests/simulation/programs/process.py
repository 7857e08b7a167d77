"""A program that uses the feed, on a machine of its own."""

from __future__ import annotations

import contextlib

import trio
from tests.fake_host import InlineWorker

import tailrace
from tailrace import Retryable
from tailrace.trio.host import Host

FEED = "simulated"
# Longer than any outage of a run: a program that waits that long gets an answer.
PATIENT_S = 600.0


def host_of(world, machine, rnd, new_session=str):
    """Returns the host of a client on a machine of the simulated network."""
    return Host(connect=world.network.of(machine).connect, worker=InlineWorker, random=rnd, new_session=new_session)


class Process:
    """A program on a machine of its own: runs ``session`` again and again. It may be killed at any moment.

    Attributes:
        until: The event after which no further session begins.
        ended: Set when the last session has ended.
    """

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.random = world.random_of(name)
        self._scope = trio.CancelScope()
        self._paused_s = 0.0
        self._sessions = 0
        self._made_values = 0
        self.until = world.is_over
        self.ended = trio.Event()

    def connect(self, url=None, **options):
        """Returns a client of all nodes, or of those of ``url``."""
        host = host_of(self.world, self.name, self.random, self._new_session)
        return tailrace.connect(url or self.world.url, name=self.name, host=host, **options)

    def _new_session(self):
        """Returns the id of a session. It has a generator of its own, so that the program's other draws do not move."""
        self._sessions += 1
        return self.world.random_of(f"{self.name} session {self._sessions}").randbytes(16).hex()

    def kill(self, paused_s):
        """Ends the program, which is started again after ``paused_s`` seconds."""
        self._paused_s = paused_s
        self.world.network.process_died(self.name)
        self._scope.cancel()

    async def run(self):
        """Runs one session after the other until ``until`` is set."""
        while not self.until.is_set():
            with trio.CancelScope() as self._scope:
                await self.session()
            if self._paused_s:
                paused_s, self._paused_s = self._paused_s, 0.0
                await self.pause(paused_s)
        await self.end()
        self.ended.set()

    async def end(self):
        """Does what comes after the last session, when all is well again."""

    async def pause(self, seconds):
        """Waits, but not beyond the end of the faults."""
        with trio.move_on_after(seconds):
            await self.world.is_over.wait()

    async def session(self):
        """Runs the program once, from its start to its end or to an error that it survives."""
        raise NotImplementedError

    async def repeat(self, step, *, retry_for):
        """Calls ``step(feed)`` until the faults are over, or until no node has answered for ``retry_for`` seconds."""
        with contextlib.suppress(Retryable), self.world.damage():
            async with self.connect(retry_for=retry_for, connect_timeout=5.0) as client:
                feed = client.feed(self.world.feed_name)
                while not self.world.is_over.is_set():
                    await step(feed)
            return
        await trio.sleep(0.1)

    def new_value(self):
        """Returns a value that no program has written before."""
        self._made_values += 1
        size = self.random.choice((0, 0, 10, 60, 300, 1_500))
        return f"{self.name}.{self._made_values} ".encode() + bytes(size)
