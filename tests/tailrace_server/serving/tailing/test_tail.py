"""A tail with a stream of its own, up to where it joins a hub."""

from __future__ import annotations

import json
from types import SimpleNamespace

import trio
from tests.tailrace_server.serving.tailing.test_ticks import end, positions, rows

from tailrace_server.serving.tailing.tail import Tail
from tailrace_server.serving.tailing.ticks import Place


class Stream:
    """A stream whose events come when ``send`` is given them."""

    def __init__(self):
        self.latest_positions = positions(0, 0)
        self.send, self._receive = trio.open_memory_channel(10)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    def status(self):
        return SimpleNamespace(partitions=(0, 1))

    def has_event(self):
        return self._receive.statistics().current_buffer_used > 0

    async def __anext__(self):
        event = await self._receive.receive()
        self.latest_positions = positions(event.last_seq, 0)
        return event


class Hub:
    """A hub that has come to seq 2 of partition 0, and a group with it. No tick comes."""

    def level(self, *_):
        return self

    def away(self, _):
        pass

    def place(self, held):
        return Place(0, held, is_level=True) if held == positions(2, 0) else None

    async def next_tick(self, _):
        await trio.sleep_forever()


class Outlet:
    """Passes on the types of the messages."""

    def __init__(self):
        self.pass_on, self.passed = trio.open_memory_channel(10)

    async def send(self, message):
        await self.pass_on.send(json.loads(message)["type"])


async def test_a_tail_does_not_join_between_the_last_row_of_a_snapshot_and_its_end(nursery, autojump_clock):
    stream, outlet = Stream(), Outlet()
    nursery.start_soon(Tail("orders", lambda _: stream, outlet, Hub()).run, "beginning")
    await stream.send.send(rows(0, 1, 2))
    assert [await outlet.passed.receive() for _ in range(3)] == ["open", "mutations", "positions"]
    await stream.send.send(end(0, 2))
    assert [await outlet.passed.receive() for _ in range(2)] == ["snapshot_end", "positions"]
    nursery.cancel_scope.cancel()
