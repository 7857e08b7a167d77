"""Kills the leader for good (SIGKILL) while the sink's writes are in flight, and checks that they were.

Micro-batches have whole files and are written one after the other, and every mutation is a change of a file. If the
feed has exactly the changes up to the end of some file, no write need be in flight. With any other number, a
micro-batch has some of its writes answered and others not; ``interrupt`` waits for such a moment.

Then the other servers choose a leader by themselves. It begins a branch in each partition, and the bases of these tell
how many mutations it has begun with: that number must lie within a micro-batch, too.
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
# A micro-batch may end between the check of the feed and the kill; then another kill is needed.
KILLS_MAX = 5


class Interruption(NamedTuple):
    """A kill of the leader in the middle of a micro-batch.

    ``written`` is the number of mutations that the next leader began with, and ``down_s`` the seconds until it led.
    ``kills`` counts this kill and the earlier ones, at which no batch was in flight.
    """

    written: int
    batch: MicroBatch
    killed: Server
    successor: Server
    down_s: float
    kills: int

    @property
    def written_of_batch(self) -> int:
        """The number of the micro-batch's changes that the next leader began with."""
        return self.written - self.batch.first_order + 1


async def interrupt(
    servers: Servers, client: Client, feed: Feed, job: Job, producer: Producer, total: int
) -> Interruption:
    """Kills the leader when a third of ``total`` is written and writes are in flight, and waits for the next one.

    Raises DemoFailed if all changes were written before such a moment.
    """
    for kills in range(1, KILLS_MAX + 1):
        # After a kill without writes in flight, the killed server is needed again: two of three have to run.
        await servers.revive()
        leader = await servers.leader(client)
        if not await _moment(feed, producer, total):
            break
        await servers.kill(leader)
        killed = time.monotonic()
        successor = await servers.successor(client)
        down_s = time.monotonic() - killed
        written = await changes_at_begin(client, feed)
        if written == total:
            break
        batch = await _batch_written(job, written)
        if was_in_flight(batch, written):
            return Interruption(written, batch, leader, successor, down_s, kills)
    raise DemoFailed(
        f"all {total:,} changes were written before the leader could be killed with some of a micro-batch's writes "
        "answered and others not. Run the demo again, or use a longer history"
    )


async def written_changes(feed: Feed) -> int:
    """Returns how many mutations of the feed are on the leader's disk."""
    return sum(partition.durable_seq for partition in await feed.partitions())


async def changes_at_begin(client: Client, feed: Feed) -> int:
    """Returns how many mutations of the feed its leader has begun with: the bases of its branches."""
    while True:
        details = (await client.status()).details
        if details["replication"]["role"] == "leader":
            [found] = [each for each in details["feeds"] if each["name"] == feed.name]
            return sum(state["branches"][0][2] for state in found["states"])
        await trio.sleep(POLL_S)


async def _moment(feed: Feed, producer: Producer, total: int) -> bool:
    """Waits for a good moment. Returns False if all changes were written before one."""
    while True:
        written = await written_changes(feed)
        if is_good_moment(written, total, producer.ends):
            return True
        if written >= total:
            return False
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


def was_in_flight(batch: MicroBatch, written: int) -> bool:
    """Returns whether only some of the batch's changes were among the first ``written``."""
    return batch.first_order <= written < batch.last_order
