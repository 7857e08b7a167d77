"""A program that changes the replication mode of the feed while others use it."""

from __future__ import annotations

import contextlib

import trio

from tailrace import OutcomeUnknown, Retryable

from .process import PATIENT_S, Process

MODES = ("stream", "segment")


class ModeSwitcher(Process):
    """Sets the mode of the feed to either one, again and again. Where there is a sink the last one is ``stream``."""

    async def session(self):
        with contextlib.suppress(Retryable, OutcomeUnknown):
            async with self.connect(retry_for=self.random.choice((0.5, 2.0)), connect_timeout=5.0) as client:
                while not self.world.is_over.is_set():
                    await self._set(client, self.random.choice(MODES))
                    await self.pause(self.random.random() * 2.0)
            return
        await trio.sleep(0.1)

    async def end(self):
        if not self.world.plan.has_sink:
            return
        async with self.connect(retry_for=PATIENT_S, connect_timeout=PATIENT_S) as client:
            while True:
                with contextlib.suppress(Retryable, OutcomeUnknown):
                    await self._set(client, "stream")
                    return
                await trio.sleep(0.1)

    async def _set(self, client, mode):
        await client.set_feed(self.world.feed_name, replication=mode)
        self.world.report.operation(f"mode {mode}")
