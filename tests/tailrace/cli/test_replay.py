"""``tailrace feed replay``: parked rows that are still the newest, and some that are not."""

from __future__ import annotations

import json

import pytest
import trio

import tailrace
from tailrace.indexes import MemoryIndex


class Picky(MemoryIndex):
    """An index that takes no value "bad", until it is mended."""

    is_mended = False

    def apply(self, mutations, checkpoint):
        if not self.is_mended and any(row.value in (b"bad", None) for row in mutations):
            raise ValueError("cannot take it")
        super().apply(mutations, checkpoint)


@pytest.fixture
def follow(served_url, made_feed):
    """A function that follows ``made_feed`` up to now, and returns the number of parked rows."""

    def follow(index):
        async def follow_up_to_now():
            async with (
                tailrace.connect(served_url) as client,
                client.feed(made_feed).follow(index, on_error="park") as follower,
            ):
                await follower.barrier()
                return follower.parked_rows

        return trio.run(follow_up_to_now)

    return follow


def test_parked_rows_come_again_unless_they_were_replaced(call, made_feed, write, follow):
    index = Picky()
    write((b"a", b"good"), (b"b", b"bad"), (b"c", b"bad"), (b"d", b"good"))
    assert follow(index) == 2
    write((b"c", b"good"), (b"d", None))
    assert follow(index) == 1
    assert index.state == {b"a": b"good", b"c": b"good", b"d": b"good"}
    index.is_mended = True
    done = call("feed", "replay", made_feed, "--json")
    assert (done.code, done.err) == (0, "")
    told = json.loads(done.out)
    assert (told["replayed"], told["replaced"]) == (2, 1)
    assert follow(index) == 0
    assert index.state == {b"a": b"good", b"b": b"bad", b"c": b"good"}
    assert call("feed", "replay", made_feed).out == b"0 rows were written again, 0 had been replaced by later writes\n"


def test_a_feed_without_parked_rows(call, made_feed):
    done = call("feed", "replay", made_feed)
    assert done.code == 1
    assert f"{made_feed}.parked" in done.err
