"""Explains where a consumer with stored positions would go on, and previews a new start for one. Nothing is changed.

The node keeps no positions of consumers: programs store them. So a reset is a text for the program to begin from.
"""

from __future__ import annotations

import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from tailrace.consuming.explain import explain, request_of
from tailrace.model import Level
from tailrace.model.position import Position, Positions
from tailrace.model.times import looks_like_time, parse_time, to_us
from tailrace_server.replication.in_turns import InTurns
from tailrace_server.serving.board.pages import BadRequest
from tailrace_server.serving.metrics.first_rows import FirstRows
from tailrace_server.serving.metrics.lags import Lag, settle_all
from tailrace_server.serving.starts import start_since
from tailrace_server.stream.resume import resume_answer

if TYPE_CHECKING:
    from tailrace_server.feeds.feed import Feed
    from tailrace_server.partition.partition import Partition
    from tailrace_server.serving.services import Services

BEGINNING, NOW = "beginning", "now"
# Longer positions are parsed by a thread: these take some 5 ms.
_PARSED_HERE_CHARS_MAX = 4 * 1024
# Positions that are longer are not repeated in the example of a command.
_COMMAND_CHARS_MAX = 300


async def parse_positions(node: Services, feed: Feed, text: str) -> Positions:
    """Returns the positions of this feed that ``text`` has. BadPosition."""
    if len(text) <= _PARSED_HERE_CHARS_MAX:
        positions = Positions.parse(text)
    else:
        positions = await node.host.workers.in_thread(partial(Positions.parse, text))
    positions.require_feed(node.identity.cluster_id, feed.info.feed_id)
    for number in positions:
        if number >= len(feed.partitions):
            raise BadRequest(f"the positions name partition {number}, and feed {feed.info.name!r} has no such one")
    return positions


async def explain_resume(node: Services, feed: Feed, text: str, level_name: str) -> dict[str, Any]:
    """Returns for each partition what a consumer with these positions would do. BadPosition, BadRequest."""
    positions, level = await parse_positions(node, feed, text), _level_of(node, feed, level_name)
    turns, found = InTurns(), []
    for number, position in sorted(positions.items()):
        await turns.look()
        partition = feed.partitions[number]
        request = request_of(feed.info.feed_id, number, position, level, partition.state)
        found.append(explain(number, position, resume_answer(request, partition)).to_json())
    return {"partitions": found, "level": level.name.lower(), "summary": _summary(feed, found)}


def _level_of(node: Services, feed: Feed, name: str) -> Level:
    if not name:
        return feed.read_level(next(iter(node.leaderships.of_feed(feed.info.feed_id))).safest_level)
    try:
        return Level[name.upper()]
    except KeyError:
        raise BadRequest(f"level is {name!r:.50}: memory, disk and quorum are known") from None


def _summary(feed: Feed, found: list[dict[str, Any]]) -> str:
    outcomes = [each["outcome"] for each in found]
    counts = {outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)}
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    missing = len(feed.partitions) - len(found)
    anew = f"; {missing} partitions are not in the positions, and begin at the beginning" if missing else ""
    return f"Of {len(found)} partitions: {told or 'none'}{anew}."


async def preview_reset(node: Services, feed: Feed, to: str, before: str) -> dict[str, Any]:
    """Returns what a consumer that begins at ``to`` would get.

    ``to`` is "beginning", "now", a time or positions. ``before`` are the positions where it is now; "" if unknown.
    BadPosition, BadRequest, DataGone.
    """
    begins = await _begins(node, feed, to)
    had = None if not before else await parse_positions(node, feed, before)
    turns, rows, lag, first = InTurns(), [], Lag(), FirstRows(node)
    first.begin()
    for partition, position in zip(feed.partitions, begins, strict=True):
        await turns.look()
        lag.lacks(first, partition, position.seq)
        rows.append(_row(partition, position, None if had is None else had.get(partition.id)))
    await settle_all([lag], first)
    text = str(Positions(node.identity.cluster_id, feed.info.feed_id, dict(enumerate(begins))))
    mutations, wall_us = sum(row["mutations"] for row in rows), node.clock.wall_us()
    return {
        "to": to,
        "positions": text,
        "partitions": rows,
        "mutations": mutations,
        "again": None if had is None else sum(row["again"] for row in rows),
        "skipped": None if had is None else sum(row["skipped"] for row in rows),
        "oldest_us": wall_us - int(lag.seconds(wall_us) * 1e6) if mutations else None,
        "applied": False,
        "how": "The node keeps no positions of consumers, so nothing has changed. Stop the program, store these "
        "positions where it keeps its own, and start it.",
        "command": f"tailrace tail {feed.info.name} --since {text if len(text) <= _COMMAND_CHARS_MAX else 'POSITIONS'}",
    }


async def _begins(node: Services, feed: Feed, to: str) -> list[Position]:
    """Returns the position in each partition at which a consumer would begin."""
    if to == BEGINNING:
        return [Position.at(partition.log, 0) for partition in feed.partitions]
    if to == NOW:
        level = _level_of(node, feed, "")
        return [Position.at(partition.log, partition.visible_seq(level)) for partition in feed.partitions]
    if looks_like_time(to):
        try:
            since_us = to_us(parse_time(to, datetime.datetime.now(datetime.UTC)), "to")
        except ValueError as error:
            raise BadRequest(f"to: {error}") from None
        turns, found = InTurns(), []
        for partition in feed.partitions:
            await turns.look()
            start = await start_since(node, partition, since_us)
            found.append(Position.at(partition.log, start.seq, start.snapshot_first, start.snapshot_last))
        return found
    positions = await parse_positions(node, feed, to)
    return [positions.get(partition.id, Position.at(partition.log, 0)) for partition in feed.partitions]


def _row(partition: Partition, position: Position, had: Position | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": partition.id,
        "seq": position.seq,
        "high": partition.high_seq,
        "mutations": rows_between(partition, position.seq, partition.high_seq),
    }
    if had is None:
        return row | {"again": None, "skipped": None}
    return row | {
        "again": rows_between(partition, position.seq, had.seq),
        "skipped": rows_between(partition, had.seq, position.seq),
    }


def rows_between(partition: Partition, after_seq: int, last_seq: int) -> int:
    """Returns how many rows above ``after_seq`` up to ``last_seq`` the partition has, at most.

    A segment that has only some of these seqs counts with all its rows, if there are not more than seqs.
    """
    rows = 0
    for segment in partition.chain.after(after_seq):
        identity = segment.identity
        if identity.after_seq >= last_seq:
            break
        seqs = min(identity.last_seq, last_seq) - max(identity.after_seq, after_seq)
        rows += min(identity.rows, seqs)
    return rows + max(0, min(last_seq, partition.high_seq) - max(after_seq, partition.flushed_seq))
