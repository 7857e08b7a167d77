"""The kill: SIGKILL for the leader while the sink's writes are in flight, for good, and the proof that they were.

Micro-batches are written one after the other, each of whole files, and every mutation is a change of a file. So when
the feed has as many mutations as there are changes up to the end of some file, nothing need be in flight; with any
other number, a micro-batch has some of its writes answered and others not. That moment is waited for.

Nobody leads for a second then, and another server is promoted, as an operator does it. Spark's own report of this
micro-batch has to say that it ended after that.
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
    from pyspark_tailrace.demo.servers import Servers
    from tailrace import Client, Feed

# A micro-batch of a short history is written in some tens of milliseconds.
POLL_S = 0.002
BATCH_POLL_S = 0.2
# So long nobody leads at least: longer than Spark takes to end a micro-batch whose writes are all answered.
DOWN_S = 1.0
# A micro-batch may end between the look at the feed and the kill; then there is another one.
KILLS_MAX = 5


class Interruption(NamedTuple):
    """A kill of the leader in the middle of a micro-batch.

    ``written`` is the number of mutations that the leader had on its disk, and ``down_s`` the seconds without a leader.
    ``kills`` counts this kill and the earlier ones, at which no batch was in flight.
    """

    written: int
    batch: MicroBatch
    killed: Server
    promoted: Server
    down_s: float
    kills: int

    @property
    def written_of_batch(self) -> int:
        """How many of the micro-batch's changes were on the leader's disk."""
        return self.written - self.batch.first_order + 1


async def interrupt(
    servers: Servers, client: Client, feed: Feed, job: Job, producer: Producer, total: int
) -> Interruption:
    """Kills the leader once a third of ``total`` is written and writes are in flight, and has another one promoted.

    DemoFailed where all is written before such a moment was found.
    """
    for kills in range(1, KILLS_MAX + 1):
        # Of a kill at which nothing was in flight: for the next one two others have to be left.
        await servers.revive()
        leader = await servers.leader(client)
        written = await _moment(feed, producer, total)
        if written is None:
            break
        await servers.kill(leader)
        killed = time.monotonic()
        await trio.sleep(DOWN_S)
        until = time.time()
        promoted = await servers.promote()
        down_s = time.monotonic() - killed
        batch = await _batch_written(job, written)
        if was_in_flight(batch, written, until):
            return Interruption(written, batch, leader, promoted, down_s, kills)
    raise DemoFailed(
        f"all {total:,} changes were written before the leader could be killed with some of a micro-batch's writes "
        "answered and others not; run it again, or take a longer history"
    )


async def written_changes(feed: Feed) -> int:
    """How many mutations of the feed its leader has on its disk."""
    return sum(partition.durable_seq for partition in await feed.partitions())


async def _moment(feed: Feed, producer: Producer, total: int) -> int | None:
    """Waits for a good moment; how many changes are written now, None where all are."""
    while True:
        written = await written_changes(feed)
        if is_good_moment(written, total, producer.ends):
            return written
        if written >= total:
            return None
        await trio.sleep(POLL_S)


def is_good_moment(written: int, total: int, ends: Collection[int]) -> bool:
    """A third is written, and a micro-batch is under way. ``ends``: the changes up to the end of each file."""
    return 3 * written >= total and written < total and written not in ends


async def _batch_written(job: Job, written: int) -> MicroBatch:
    """The micro-batch in which the change after ``written`` of them is, once it is done."""
    while True:
        batch = batch_of(await trio.to_thread.run_sync(job.micro_batches), written + 1)
        if batch is not None:
            return batch
        await trio.sleep(BATCH_POLL_S)


def batch_of(batches: Sequence[MicroBatch], order: int) -> MicroBatch | None:
    """The micro-batch that has the change with this number."""
    return next((batch for batch in batches if batch.first_order <= order <= batch.last_order), None)


def was_in_flight(batch: MicroBatch, written: int, until: float) -> bool:
    """Some of the batch's changes were written, and it did not end before ``until``, when still nobody led."""
    return batch.first_order <= written < batch.last_order and batch.ended > until
