"""Imports write each row once, whatever interrupts them."""

from __future__ import annotations

import contextlib

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tailrace import Delete, Put
from tailrace.cli.rowfiles import batches as module
from tailrace.cli.rowfiles.batches import batches
from tailrace.cli.rowfiles.loader import STAGE_TRIES, Loader, Progress
from tailrace.errors import BatchChanged, UnknownStage, Unreachable

ROWS = 20
CHANGES = [Delete(b"k1") if number == 7 else Put(b"k%d" % (number % 6), b"v%d" % number) for number in range(ROWS)]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(module, "ROWS_MAX", 3)


class Feed:
    """A feed whose calls fail when the test says so."""

    def __init__(self, feed):
        self._feed = feed
        self.publishes = 0
        self.before = self.after = lambda number: None

    def stage(self):
        return self._feed.stage()

    async def publish(self, sink, batch, stages):
        self.publishes += 1
        self.before(self.publishes)
        published = await self._feed.publish(sink, batch, stages)
        self.after(self.publishes)
        return published


@pytest.fixture
def failing(feed):
    return Feed(feed)


async def load(feed, changes=CHANGES, sink="import:x"):
    loader = Loader(feed, sink, lambda progress: None)
    await loader.load(batches(iter(changes)))
    return loader.progress


async def rows_in(feed):
    return sum(partition.high_seq for partition in await feed.partitions())


async def test_rows_are_written_once(feed):
    assert await load(feed) == Progress(written=ROWS, deletions=1)
    assert await load(feed) == Progress(present=ROWS, deletions=1)
    assert await rows_in(feed) == ROWS
    assert await load(feed, sink="import:y") == Progress(written=ROWS, deletions=1)
    assert await rows_in(feed) == 2 * ROWS
    items = {item.key: item.value async for item in feed.items()}
    assert items == {b"k%d" % key: b"v%d" % max(n for n in range(ROWS) if n % 6 == key) for key in range(6)}


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("at", range(1, 9))
async def test_an_import_that_breaks_off_goes_on(feed, failing, at, is_after):
    """The first publish asks for the batches that are there, so the ninth is the last one."""

    def fail(number):
        if number == at:
            raise Unreachable("the answer is lost")

    setattr(failing, "after" if is_after else "before", fail)
    with pytest.RaisesGroup(Unreachable, flatten_subgroups=True, allow_unwrapped=True):
        await load(failing)
    there = await rows_in(feed)
    progress = await load(feed)
    assert progress.written + progress.present == ROWS
    assert progress.written == ROWS - there
    assert await rows_in(feed) == ROWS


class FailingFeed:
    """A feed whose publish fails in the turn of the loop in which the next batch is staged."""

    def __init__(self):
        self.seals = 0
        self.publishes = trio.Event()

    @contextlib.asynccontextmanager
    async def stage(self):
        yield self

    async def put(self, key, value):
        pass

    async def delete(self, key):
        pass

    async def seal(self):
        self.seals += 1
        if self.seals == 2:
            await self.publishes.wait()

    async def publish(self, sink, number, stages):
        if stages:
            await wait_all_tasks_blocked()
            self.publishes.set()
            await trio.lowlevel.checkpoint()
            raise Unreachable("the node is gone")


async def test_the_error_of_a_publish_is_not_lost_to_that_of_the_batch_behind_it():
    for _ in range(40):  # in which order the tasks run is random
        with pytest.RaisesGroup(Unreachable, flatten_subgroups=True, allow_unwrapped=True):
            await load(FailingFeed())


async def test_a_lost_stage_is_staged_anew(feed, failing):
    def lose(number):
        if number in (2, 4, 5):
            raise UnknownStage("its leader is gone")

    failing.before = lose
    assert (await load(failing)).written == ROWS
    assert await rows_in(feed) == ROWS
    failing.before = lambda number: lose(2) if number > 1 else None
    failing.publishes = 0
    with pytest.RaisesGroup(UnknownStage, flatten_subgroups=True, allow_unwrapped=True):
        await load(failing, sink="import:y")
    assert failing.publishes == 1 + STAGE_TRIES


async def test_other_rows_under_the_same_id_are_refused(feed):
    await load(feed, CHANGES[:5])
    with pytest.RaisesGroup(BatchChanged, flatten_subgroups=True, allow_unwrapped=True):
        await load(feed, [*CHANGES[:4], Put(b"other", b"row")])
    assert await rows_in(feed) == 5


async def test_an_import_that_grew_goes_on_behind_whole_batches_only(feed):
    """The last batch was short, and would be another one now: its rows cannot be told from the new ones."""
    await load(feed, CHANGES[:6])
    assert (await load(feed, CHANGES[:9])) == Progress(written=3, present=6, deletions=1)


async def test_an_error_of_the_input_keeps_what_was_before_it(feed):
    def changes():
        yield from CHANGES[:10]
        raise ValueError("a bad line")

    loader = Loader(feed, "import:x", lambda progress: None)
    with pytest.RaisesGroup(ValueError, flatten_subgroups=True, allow_unwrapped=True):
        await loader.load(batches(changes()))
    assert await rows_in(feed) in (0, 3, 6, 9)
    await load(feed)
    assert await rows_in(feed) == ROWS


async def test_a_cancelled_import_goes_on(feed):
    loader = Loader(feed, "import:x", lambda progress: scope.cancel() if progress.written == 6 else None)
    with trio.CancelScope() as scope:
        await loader.load(batches(iter(CHANGES)))
    assert scope.cancelled_caught
    await load(feed)
    assert await rows_in(feed) == ROWS
