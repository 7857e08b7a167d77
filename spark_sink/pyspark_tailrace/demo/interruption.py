"""The kill: SIGKILL for the server while the sink's writes are in flight, and the proof that they were.

Micro-batches are written one after the other, each of whole files, and every mutation is a change of a file. So when
the feed has as many durable mutations as there are changes up to the end of some file, nothing need be in flight; with
any other number, a micro-batch has some of its writes answered and others not. That moment is waited for.

Spark's own report of this micro-batch then has to say that it ended after the server was back.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import trio

from pyspark_tailrace.demo.failure import DemoFailed

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark_tailrace.demo.job import Job, MicroBatch
    from pyspark_tailrace.demo.producer import Producer
    from pyspark_tailrace.demo.server import Server
    from tailrace import Feed

# A micro-batch of a short history is written in some tens of milliseconds.
POLL_S = 0.002
BATCH_POLL_S = 0.2
# How long the server stays away: longer than Spark takes to end a micro-batch whose writes are all answered.
DOWN_S = 1.0
# A micro-batch may end between the look at the feed and the kill; then there is another one.
KILLS_MAX = 5


class Interruption(NamedTuple):
    """A kill: how many mutations were acknowledged, the micro-batch that was being written, and how long the server

    was away, in seconds. ``kills`` counts those before it too, of which nothing was in flight.
    """

    acknowledged: int
    batch: MicroBatch
    down_s: float
    kills: int

    @property
    def acknowledged_of_batch(self) -> int:
        """How many of the micro-batch's changes were acknowledged."""
        return self.acknowledged - self.batch.first_order + 1


async def interrupt(server: Server, feed: Feed, job: Job, producer: Producer, total: int) -> Interruption:
    """Kills the server once a third of ``total`` is acknowledged and writes are in flight, and starts it again.

    DemoFailed where all is written before such a moment was found.
    """
    for kills in range(1, KILLS_MAX + 1):
        acknowledged = await _moment(feed, producer, total)
        if acknowledged is None:
            break
        await server.kill()
        killed = time.monotonic()
        await trio.sleep(DOWN_S)
        await server.start()
        ready, down_s = time.time(), time.monotonic() - killed
        batch = await _batch_written(job, acknowledged)
        if was_in_flight(batch, acknowledged, ready):
            return Interruption(acknowledged, batch, down_s, kills)
    raise DemoFailed(
        f"all {total:,} changes were written before the server could be killed with some of a micro-batch's writes "
        "answered and others not; run it again, or take a longer history"
    )


async def acknowledged_changes(feed: Feed) -> int:
    """How many mutations the feed has, durable: what the sink's writes are acknowledged for."""
    return sum(partition.durable_seq for partition in await feed.partitions())


async def _moment(feed: Feed, producer: Producer, total: int) -> int | None:
    """Waits for a good moment; how many are acknowledged now, None where all are."""
    while True:
        acknowledged = await acknowledged_changes(feed)
        if is_good_moment(acknowledged, total, producer.ends):
            return acknowledged
        if acknowledged >= total:
            return None
        await trio.sleep(POLL_S)


def is_good_moment(acknowledged: int, total: int, ends: Collection[int]) -> bool:
    """A third is acknowledged, and a micro-batch is under way. ``ends``: the changes up to the end of each file."""
    return 3 * acknowledged >= total and acknowledged < total and acknowledged not in ends


async def _batch_written(job: Job, acknowledged: int) -> MicroBatch:
    """The micro-batch in which the change after ``acknowledged`` of them is, once it is done."""
    while True:
        batch = batch_of(await trio.to_thread.run_sync(job.micro_batches), acknowledged + 1)
        if batch is not None:
            return batch
        await trio.sleep(BATCH_POLL_S)


def batch_of(batches: Sequence[MicroBatch], order: int) -> MicroBatch | None:
    """The micro-batch that has the change with this number."""
    return next((batch for batch in batches if batch.first_order <= order <= batch.last_order), None)


def was_in_flight(batch: MicroBatch, acknowledged: int, ready: float) -> bool:
    """Some of the batch's changes were acknowledged, and it did not end before the server was ``ready`` again."""
    return batch.first_order <= acknowledged < batch.last_order and batch.ended > ready
