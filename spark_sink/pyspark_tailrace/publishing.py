"""What a task stages, and what the driver publishes of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from pyspark_tailrace.connections import IN_FLIGHT_BYTES, cached_feed
from pyspark_tailrace.options import SinkOptions
from pyspark_tailrace.routing import RoutedBlock
from tailrace.blocking import Feed, Stage
from tailrace.errors import BatchBehind, BatchChanged, TooLarge, UnknownStage, Unreachable
from tailrace.requests.staging import Published, SealedStage

# A task goes on with another stage at so much of one partition: a job's publishes are made of whole stages.
STAGE_PARTITION_BYTES = 16 * 1024 * 1024
# What a job publishes of one partition at a time: a node writes up to 60 MiB as it is, and sorts what is more.
PUBLISH_BYTES = 48 * 1024 * 1024
# What is staged is on one node, and goes with it, as when another one leads.
STAGED_ANEW = (
    "Start the query again with the same checkpoint, unless Spark runs the task again by itself: the micro-batch is "
    "staged anew, and each partition takes it once"
)
# Spark has noted what is in a micro-batch before it runs it: no option makes it smaller any more.
TOO_LARGE = (
    "A micro-batch that has begun has the same rows after every start. Start the query once with .option('delivery', "
    "'at_least_once'), let it end this batch, and go on without that option, and with the last change of each key "
    "only, or with smaller micro-batches. A batch job with a batch_id: drop the earlier changes of each key, or make "
    "it several jobs, each with a batch_id of its own"
)

# What to do if a batch comes again with other rows.
OTHER_ROWS = (
    "If the checkpoint was restored from an older copy, or copied: go on with the newest one, or say "
    ".option('first_batch', {first}), which writes what this one reads (a job: take it as batch_id), or use another "
    "sink_id. If it was not, the same input gives other rows each time, as by a clock, rand(), uuid() or sums of "
    "floating point: say .option('on_changed_batch', 'skip') for this batch, and each partition keeps the rows that it "
    "took first"
)
# What to do after a publish that has no answer.
ASKED_AGAIN = (
    "Start the query again with the same checkpoint, or the job with the same batch_id: each partition takes the batch "
    "once"
)
JOB_MAY_BE_PUBLISHED = (
    "The job has no number, so running it again may write its rows twice: look at the feed before, and give it a "
    "sink_id and a batch_id, with which it is written once however often it is run"
)
# A publish is asked for once at least, however long connecting took.
_LAST_TRY_S = 1.0

assert STAGE_PARTITION_BYTES * 2 < PUBLISH_BYTES


class TaskStage(NamedTuple):
    """A sealed stage, and how many bytes of each partition it has."""

    stage: SealedStage
    nbytes: dict[int, int]


TaskStages: TypeAlias = tuple[TaskStage, ...]


def stage_blocks(feed: Feed, blocks: Iterable[RoutedBlock]) -> TaskStages:
    """Stages blocks under fresh ids; they are on the node's disk when this returns, and nobody sees them.

    Raises UnknownStage where the node has lost some of it meanwhile, TooLarge, Unreachable, ...
    """
    try:
        return tuple(_staged(feed, blocks))
    except UnknownStage as error:
        raise UnknownStage(f"{error}. {STAGED_ANEW}") from error


def _staged(feed: Feed, blocks: Iterable[RoutedBlock]) -> Iterator[TaskStage]:
    stage: Stage | None = None
    nbytes: dict[int, int] = {}
    for routed in blocks:
        if stage is None:
            stage, nbytes = feed.stage(in_flight_bytes=IN_FLIGHT_BYTES), {}
        stage.send(routed.block, digest=routed.digest())
        partition = routed.block.header.partition
        nbytes[partition] = nbytes.get(partition, 0) + routed.block.nbytes
        if nbytes[partition] >= STAGE_PARTITION_BYTES:
            yield TaskStage(stage.seal(), nbytes)
            stage = None
    if stage is not None:
        yield TaskStage(stage.seal(), nbytes)


def batch_origin(query: str, first_batch: int) -> str:
    """Who gives the numbers of a query's batches: another one where something else is added to them.

    Were it the same one, batches whose numbers fall, since the option was left out, would be passed over as old ones.
    """
    return f"{query}+{first_batch}" if first_batch else query


def publish_batch(options: SinkOptions, sink: str, batch: int, origin: str, tasks: Sequence[TaskStages]) -> Published:
    """Publishes what the tasks have staged as one batch. Raises UnknownStage, BatchBehind, TooLarge, ...

    ``skipped`` of what it gives are the partitions that have had this batch, or a later one, before this call.
    """
    stages = [share.stage for shares in tasks for share in shares]
    return _publish(options, sink, batch, origin, stages, ASKED_AGAIN) if stages else Published({}, ())


def make_feed(options: SinkOptions) -> None:
    """Creates the feed where it is not there and the sink may: what is there is checked. For input without a row."""
    if options.create_feed:
        with cached_feed(options):
            pass


def publish_job(options: SinkOptions, job_id: str, tasks: Sequence[TaskStages]) -> None:
    """Publishes what the tasks of a job have staged, in as many batches as it takes, each once."""
    shares = [share for task in tasks for share in task]
    for batch, part in enumerate(parts(shares, PUBLISH_BYTES)):
        _publish(options, job_id, batch, job_id, [share.stage for share in part], JOB_MAY_BE_PUBLISHED)


def parts(shares: Iterable[TaskStage], bytes_max: int) -> Iterator[list[TaskStage]]:
    """The shares in order, in parts in which no partition has more than ``bytes_max``, unless one share alone has."""
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
    options: SinkOptions, sink: str, batch: int, origin: str, stages: Sequence[SealedStage], if_unknown: str
) -> Published:
    """Asks for ``retry_for`` seconds, connecting included; ``if_unknown`` says what to do if no answer has come.

    The time begins anew when the node says that it has done a part of a large batch.
    """
    deadline = time.monotonic() + options.retry_for_s
    try:
        with cached_feed(options) as feed:
            left_s = max(deadline - time.monotonic(), _LAST_TRY_S)
            return feed.publish(sink, batch, stages, origin=origin, compare=options.is_compared, timeout=left_s)
    except Unreachable as error:
        raise Unreachable(
            f"batch {batch} of {sink} has no answer within {options.retry_for_s:g} s (option 'retry_for'), and may be "
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
            f"{error}. The checkpoint was restored from an older copy, or it, or option 'first_batch', is another "
            f"one than that of the batches which sink_id {sink!r} has published. Its next rows may be in no batch "
            f"of then, so they are not passed over: go on with the checkpoint of those batches, or say "
            f".option('first_batch', {error.first_batch}), which writes what this one reads, or use another "
            f"sink_id",
            first_batch=error.first_batch,
        ) from error
