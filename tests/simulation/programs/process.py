"""A program that uses the feed, on a machine of its own."""

from __future__ import annotations

import trio
from tests.fake_host import InlineWorker

import tailrace
from tailrace.trio.host import Host

FEED = "simulated"
# Longer than any outage here: whoever waits that long gets an answer.
PATIENT_S = 600.0


class Process:
    """A program on a machine of its own: runs ``session`` again and again; may be killed in the middle of anything."""

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.random = world.random_of(name)
        self._scope = trio.CancelScope()
        self._paused_s = 0.0
        self._sessions = 0
        self.until = world.is_over
        self.ended = trio.Event()

    def connect(self, **options):
        host = Host(
            connect=self.world.network.of(self.name).connect,
            worker=InlineWorker,
            random=self.random,
            new_session=self._new_session,
        )
        return tailrace.connect(self.world.url, name=self.name, host=host, **options)

    def _new_session(self):
        """As programs give one; of a randomness of its own, so that nothing else that is left to chance changes."""
        self._sessions += 1
        return self.world.random_of(f"{self.name} session {self._sessions}").randbytes(16).hex()

    def kill(self, paused_s):
        """Ends it; it is started again after so many seconds."""
        self._paused_s = paused_s
        self.world.network.process_died(self.name)
        self._scope.cancel()

    async def run(self):
        while not self.until.is_set():
            with trio.CancelScope() as self._scope:
                await self.session()
            if self._paused_s:
                paused_s, self._paused_s = self._paused_s, 0.0
                await self.pause(paused_s)
        self.ended.set()

    async def pause(self, seconds):
        """Waits, but no longer than there is anything to do."""
        with trio.move_on_after(seconds):
            await self.world.is_over.wait()

    async def session(self):
        raise NotImplementedError
