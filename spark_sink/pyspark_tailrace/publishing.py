"""Stages blocks in the tasks, and publishes the stages in the driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from pyspark_tailrace.connections import cached_feed
from pyspark_tailrace.kept_files import KeptFolder
from pyspark_tailrace.options import SinkOptions
from pyspark_tailrace.restaging import RESTAGES_MAX, Keeper, KeptStage, KeptWriter, restage
from tailrace.block.routing import RoutedBlock
from tailrace.blocking import Feed
from tailrace.errors import BatchBehind, BatchChanged, TooLarge, UnknownStage, Unreachable
from tailrace.requests.staging import Published, SealedStage

log = logging.getLogger("tailrace.spark")

# A task begins another stage when one partition has this much, because a job publishes whole stages.
STAGE_PARTITION_BYTES = 16 * 1024 * 1024
# A job publishes up to this much of one partition at a time. A node sorts shares of more than 60 MiB.
PUBLISH_BYTES = 48 * 1024 * 1024
# With ``restage_bytes`` 0, outside of a set, and until a stage is sealed, it is on one node only (`restaging`).
STAGED_ANEW = (
    "Start the query again with the same checkpoint, unless Spark runs the task again by itself: the micro-batch is "
    "staged anew, and each partition takes it once"
)
# Spark notes the input of a micro-batch before it runs it, so no option makes this one smaller.
TOO_LARGE = (
    "A micro-batch that has begun has the same rows after every start. Start the query once with .option('delivery', "
    "'at_least_once') until this batch is done. Then continue without that option, and keep only the last change of "
    "each key, or make smaller micro-batches. For a batch job with a batch_id: drop the earlier changes of each key, "
    "or split it into several jobs, each with its own batch_id"
)

# What to do if a batch comes again with other rows.
OTHER_ROWS = (
    "If the checkpoint was copied, or restored from an older copy: continue with the newest one, or give "
    ".option('first_batch', {first}), which writes the rows of this one (a job: give it as batch_id), or use another "
    "sink_id. Otherwise the query computes other rows each time, for example with a clock, rand(), uuid() or sums of "
    "floating point: give .option('on_changed_batch', 'skip') for this batch, and each partition keeps the rows that "
    "it took first"
)
# What to do after a publish without an answer.
ASKED_AGAIN = (
    "Start the query again with the same checkpoint, or the job with the same batch_id: each partition takes the batch "
    "once"
)
JOB_MAY_BE_PUBLISHED = (
    "The job has no number, so running it again may write its rows twice. Look at the feed first. With a sink_id and "
    "a batch_id the job is written once, however often it runs"
)
# A publish is tried at least once, even if connecting took all of the time.
_LAST_TRY_S = 1.0

assert STAGE_PARTITION_BYTES * 2 < PUBLISH_BYTES


class TaskStage(NamedTuple):
    """A sealed stage of a task, with its bytes of each partition, and its blocks if they were kept."""

    stage: SealedStage
    nbytes: dict[int, int]
    kept: KeptStage | None = None


TaskStages: TypeAlias = tuple[TaskStage, ...]


def stage_blocks(
    feed: Feed,
    blocks: Iterable[RoutedBlock],
    restage_bytes: int = 0,
    folder: KeptFolder | None = None,
    batch: str = "",
) -> TaskStages:
    """Stages blocks under fresh ids. When it returns they are on the node's disk, and not yet visible.

    Keeps the blocks, too: ``restage_bytes`` of them in memory. More are kept in ``folder`` under the name ``batch``, if
    it is on this machine. Stages without kept blocks are on the disks of a majority of the set, unless
    ``restage_bytes`` is 0. Raises UnknownStage if the node has lost a stage meanwhile whose blocks were not kept,
    TooLarge, Unreachable, ...
    """
    with Keeper(restage_bytes, folder or KeptFolder(), batch) as keeper:
        try:
            return tuple(_staged(feed, blocks, keeper, else_at_quorum=restage_bytes > 0))
        except UnknownStage as error:
            raise UnknownStage(f"{error}. {STAGED_ANEW}") from error


def _staged(feed: Feed, blocks: Iterable[RoutedBlock], keeper: Keeper, *, else_at_quorum: bool) -> Iterator[TaskStage]:
    stage: KeptWriter | None = None
    nbytes: dict[int, int] = {}
    for routed in blocks:
        if stage is None:
            stage, nbytes = KeptWriter(feed, keeper, else_at_quorum=else_at_quorum), {}
        stage.send(routed.block, routed.digest())
        partition = routed.block.header.partition
        nbytes[partition] = nbytes.get(partition, 0) + routed.block.nbytes
        if nbytes[partition] >= STAGE_PARTITION_BYTES:
            yield _sealed(stage, nbytes)
            stage = None
    if stage is not None:
        yield _sealed(stage, nbytes)


def _sealed(stage: KeptWriter, nbytes: dict[int, int]) -> TaskStage:
    sealed, kept = stage.seal()
    return TaskStage(sealed, nbytes, kept)


def batch_origin(query: str, first_batch: int) -> str:
    """Returns the origin of a query's batch numbers, which differs for each ``first_batch``.

    With one origin for all, numbers that fall because ``first_batch`` was left out would be taken for old batches.
    """
    return f"{query}+{first_batch}" if first_batch else query


def publish_batch(options: SinkOptions, sink: str, batch: int, origin: str, tasks: Sequence[TaskStages]) -> Published:
    """Publishes the stages of the tasks as one batch. Raises UnknownStage, BatchBehind, TooLarge, ...

    ``skipped`` of the result are the partitions that had this batch before this call.
    """
    stages = [share for shares in tasks for share in shares]
    return _publish(options, sink, batch, origin, stages, ASKED_AGAIN) if stages else Published({}, ())


def make_feed(options: SinkOptions) -> None:
    """Creates the feed with option ``create_feed``, or checks the existing one. For input without any row."""
    if options.create_feed:
        with cached_feed(options):
            pass


def publish_job(options: SinkOptions, job_id: str, tasks: Sequence[TaskStages]) -> None:
    """Publishes the stages of a job's tasks, in several batches if they are large, each batch once."""
    shares = [share for task in tasks for share in task]
    for batch, part in enumerate(parts(shares, PUBLISH_BYTES)):
        _publish(options, job_id, batch, job_id, part, JOB_MAY_BE_PUBLISHED)


def parts(shares: Iterable[TaskStage], bytes_max: int) -> Iterator[list[TaskStage]]:
    """Yields the stages in order, in groups with at most ``bytes_max`` of each partition, or of one stage."""
    part: list[TaskStage] = []
    held: dict[int, int] = {}
    for share in shares:
        if part and any(held.get(partition, 0) + size > bytes_max for partition, size in share.nbytes.items()):
            yield part
            part, held = [], {}
        part.append(share)
        for partition, size in share.nbytes.items():
            held[partition] = held.get(partition, 0) + size
    if part:
        yield part


def _publish(
    options: SinkOptions, sink: str, batch: int, origin: str, shares: Sequence[TaskStage], if_unknown: str
) -> Published:
    """Publishes within ``retry_for`` seconds, connecting included; ``if_unknown`` is the advice if no answer comes.

    The time starts again when the node answers that it has published a part of a large batch, and when stages that
    are lost were made again.
    """
    try:
        return _published(options, sink, batch, origin, shares)
    except Unreachable as error:
        raise Unreachable(
            f"batch {batch} of {sink} got no answer within {options.retry_for_s:g} s (option 'retry_for'), and may be "
            f"published: {error}. {if_unknown}",
            outcome=error.outcome,
        ) from error
    except UnknownStage as error:
        raise UnknownStage(f"{error}. {STAGED_ANEW}") from error
    except TooLarge as error:
        raise TooLarge(f"{error}. {TOO_LARGE}") from error
    except BatchChanged as error:
        advice = OTHER_ROWS.format(first=error.first_batch)
        raise BatchChanged(f"{error}. {advice}", first_batch=error.first_batch) from error
    except BatchBehind as error:
        raise BatchBehind(
            f"{error}. The checkpoint was restored from an older copy, or sink_id {sink!r} has published with another "
            f"checkpoint or another 'first_batch'. The next rows may not be among the published ones, so they are not "
            f"skipped: continue with the checkpoint of the published batches, or give "
            f".option('first_batch', {error.first_batch}), which writes the rows of this one, or use another sink_id",
            first_batch=error.first_batch,
        ) from error


def _published(options: SinkOptions, sink: str, batch: int, origin: str, shares: Sequence[TaskStage]) -> Published:
    """Publishes, from kept blocks if the node does not know the stages: another one may lead. Raises UnknownStage."""
    lost: UnknownStage | None = None
    stages = [share.stage for share in shares]
    for _ in range(RESTAGES_MAX):
        deadline = time.monotonic() + options.retry_for_s
        try:
            with cached_feed(options) as feed:
                if lost is not None:
                    again = restage(feed, [share.kept for share in shares])
                    if again is None:
                        raise lost
                    log.warning("tailrace: batch %d of %r is staged again: %s", batch, sink, lost)
                    # Those that were not kept are on a majority of the nodes.
                    stages = [new or share.stage for new, share in zip(again, shares, strict=True)]
                    deadline = time.monotonic() + options.retry_for_s
                left_s = max(deadline - time.monotonic(), _LAST_TRY_S)
                return feed.publish(sink, batch, stages, origin=origin, compare=options.is_compared, timeout=left_s)
        except UnknownStage as error:
            if error is lost:
                raise
            lost = error
    assert lost is not None, "every try has ended in this error"
    raise lost
