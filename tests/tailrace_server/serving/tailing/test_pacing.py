"""The pace of a hub's ticks, and how it wakes its tails: a few in each turn of the loop."""

from __future__ import annotations

import collections
import itertools
import math

import pytest
import trio
import trio.testing
from tests.tailrace_server.serving.tailing.test_ticks import positions

from tailrace.block import encode_block
from tailrace.consuming.events import Mutations
from tailrace_server.serving.tailing.hub import (
    TAILS_PER_TURN,
    TICK_BYTES,
    TICK_SECONDS_MAX,
    TICK_SECONDS_PER_PARTITION,
    TICK_SECONDS_PER_TAIL,
    TICK_SHARE,
    Hub,
)

PARTITIONS = 2
BEGIN = positions(0, 0)


class Stream:
    """A stream of one row after another, each ``every_s`` seconds after the one before."""

    def __init__(self, every_s, value=b"v", count=math.inf):
        self.latest_positions = BEGIN
        self._every_s = every_s
        self._value = value
        self._left = count
        self._seq = 0
        self._next_at = 0.0

    async def __aenter__(self):
        self._next_at = trio.current_time()
        return self

    async def __aexit__(self, *_):
        pass

    def has_event(self):
        return self._left > 0 and trio.current_time() >= self._next_at

    async def __anext__(self):
        if not self._left:
            await trio.sleep_forever()
        if not self.has_event():  # one that is at hand comes without a checkpoint, as of a real stream
            await trio.sleep_until(self._next_at)
        self._next_at += self._every_s
        self._left -= 1
        self._seq += 1
        self.latest_positions = positions(self._seq, 0)
        return Mutations(encode_block([b"k"], [self._value], partition=0).stamped(self._seq, 1_000))


class Turns(trio.abc.Instrument):
    """Counts the turns of the loop."""

    count = 0

    def after_io_wait(self, timeout):
        self.count += 1


@pytest.fixture
def start(nursery):
    """Runs a hub of a stream with so many tails, of which none waits; returns it once tails may join."""

    async def start(stream, tails=2):
        hub, began = Hub(stream, lambda: tails), trio.Event()
        nursery.start_soon(hub.run, began.set)
        await began.wait()
        return hub

    return start


async def times_of(hub, count):
    """Waits for ticks. Returns when each came, after the first one, which comes at once."""
    place, times = hub.place(BEGIN), []
    for _ in range(count + 1):
        tick = await hub.next_tick(place)
        place.take(tick)
        times.append(trio.current_time())
    return times


def gaps(times):
    return [later - earlier for earlier, later in itertools.pairwise(times)]


@pytest.mark.parametrize("tails", [2, 50, 1_000])
async def test_ticks_are_farther_apart_the_more_tails_there_are(start, autojump_clock, tails):
    pace_s = TICK_SECONDS_PER_TAIL * tails + TICK_SECONDS_PER_PARTITION * PARTITIONS
    hub = await start(Stream(every_s=pace_s / 100), tails)
    for gap in gaps(await times_of(hub, 4)):  # the fifth one of many tails is early, since positions are due
        assert pace_s <= gap + 1e-9 <= pace_s * 1.02


async def test_a_row_after_quiet_comes_at_once(start, autojump_clock):
    hub = await start(Stream(every_s=5.0), tails=1_000)
    assert gaps(await times_of(hub, 3)) == [5.0] * 3
    assert all(hub._ring.get(number).tells_positions for number in range(4))


async def test_a_large_tick_comes_before_it_is_due(start, autojump_clock):
    hub = await start(Stream(every_s=0.001, value=bytes(TICK_BYTES)), tails=1_000)
    assert [round(gap, 9) for gap in gaps(await times_of(hub, 5))] == [0.001] * 5


@pytest.mark.parametrize("round_s", [0.24, 0.3, 0.45, 0.8])
async def test_a_slow_round_gives_the_others_a_pause_also_if_positions_are_due(start, autojump_clock, nursery, round_s):
    hub, times, done = await start(Stream(every_s=0.01)), [], trio.Event()

    async def take_long():
        place = hub.place(BEGIN)
        while len(times) < 12:
            place.take(await hub.next_tick(place))
            times.append(trio.current_time())
            autojump_clock.jump(round_s)
        done.set()

    nursery.start_soon(take_long)
    await done.wait()
    pause_s = min(TICK_SHARE * round_s, TICK_SECONDS_MAX)
    for gap in gaps(times)[1:]:  # the first tick had come before there was a tail
        assert pause_s <= gap + 1e-9 <= pause_s + 0.02
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("tails", [1, TAILS_PER_TURN, TAILS_PER_TURN + 1, 5 * TAILS_PER_TURN + 3])
async def test_few_tails_are_woken_in_each_turn_and_all_in_the_end(start, autojump_clock, nursery, tails):
    hub, woken_in, turns = await start(Stream(every_s=10.0)), collections.Counter(), Turns()
    first = hub.place(BEGIN)
    await hub.next_tick(first)
    first.take(await hub.next_tick(first))

    async def wait():
        place = hub.place(first.positions)
        while True:
            place.take(await hub.next_tick(place))
            woken_in[turns.count] += 1

    trio.lowlevel.add_instrument(turns)
    for _ in range(tails):
        nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    await trio.sleep(0.5)
    assert not woken_in
    await trio.sleep(10.0)
    trio.lowlevel.remove_instrument(turns)
    assert sum(woken_in.values()) % tails == 0
    assert sum(woken_in.values()) >= tails
    assert max(woken_in.values()) == min(tails, TAILS_PER_TURN)
    nursery.cancel_scope.cancel()
