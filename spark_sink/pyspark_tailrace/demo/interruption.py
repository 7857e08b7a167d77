"""Kills the leader for good (SIGKILL) while the sink's writes are in flight, and checks that they were.

Micro-batches have whole files and are written one after the other, and every mutation is a change of a file. If the
feed has exactly the changes up to the end of some file, no write need be in flight. With any other number, a
micro-batch has some of its writes answered and others not; ``interrupt`` waits for such a moment.

Then the set has no leader for a second, and another server is promoted, as by an operator. Spark's own report of this
micro-batch must show that it ended later.
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
# The set is without a leader for at least this time: longer than Spark needs to end a micro-batch after its last
# answer.
DOWN_S = 1.0
# A micro-batch may end between the check of the feed and the kill; then another kill is needed.
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
        """The number of the micro-batch's changes that were on the leader's disk."""
        return self.written - self.batch.first_order + 1


async def interrupt(
    servers: Servers, client: Client, feed: Feed, job: Job, producer: Producer, total: int
) -> Interruption:
    """Kills the leader when a third of ``total`` is written and writes are in flight, and promotes another server.

    Raises DemoFailed if all changes were written before such a moment.
    """
    for kills in range(1, KILLS_MAX + 1):
        # After a kill without writes in flight, the killed server is needed again: two of three have to run.
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
        "answered and others not. Run the demo again, or use a longer history"
    )


async def written_changes(feed: Feed) -> int:
    """Returns how many mutations of the feed are on the leader's disk."""
    return sum(partition.durable_seq for partition in await feed.partitions())


async def _moment(feed: Feed, producer: Producer, total: int) -> int | None:
    """Waits for a good moment. Returns the number of written changes then, or None if all are written."""
    while True:
        written = await written_changes(feed)
        if is_good_moment(written, total, producer.ends):
            return written
        if written >= total:
            return None
        await trio.sleep(POLL_S)


def is_good_moment(written: int, total: int, ends: Collection[int]) -> bool:
    """Returns whether a third is written and a micro-batch in flight. ``ends``: the changes up to each file's end."""
    return 3 * written >= total and written < total and written not in ends


async def _batch_written(job: Job, written: int) -> MicroBatch:
    """Waits for the end of the micro-batch that has the change after the first ``written``, and returns it."""
    while True:
        batch = batch_of(await trio.to_thread.run_sync(job.micro_batches), written + 1)
        if batch is not None:
            return batch
        await trio.sleep(BATCH_POLL_S)


def batch_of(batches: Sequence[MicroBatch], order: int) -> MicroBatch | None:
    """Returns the micro-batch that has the change with this number, or None."""
    return next((batch for batch in batches if batch.first_order <= order <= batch.last_order), None)


def was_in_flight(batch: MicroBatch, written: int, until: float) -> bool:
    """Returns whether only some of the batch's changes were written, and it ended after ``until``.

    ``until`` is a time at which the set had no leader.
    """
    return batch.first_order <= written < batch.last_order and batch.ended > until
