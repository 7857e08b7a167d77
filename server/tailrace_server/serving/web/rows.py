"""POST /feeds/FEED: rows as JSON lines, written once as a numbered batch of a producer, or at most once without one.

JSON lines ── changes ──┬── no producer ──> Feed.write, which a client does not repeat
                        └── producer, batch ──> stage ──> publish, which may be repeated with the same rows
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import trio
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from tailrace.cli.rowfiles.fields import Fields
from tailrace.cli.rowfiles.json_lines import json_records
from tailrace.cli.rowfiles.loader import publish_staged, stage_changes
from tailrace.cli.rowfiles.records import BadRecord, Record
from tailrace.errors import TooLarge
from tailrace.model import Delete, LevelName, Put, VersionRange
from tailrace.requests.changes import checked_ttl
from tailrace.requests.staging import Published
from tailrace.trio.feed import Feed
from tailrace.wire.stage_messages import NAME_CHARS_MAX
from tailrace_server.serving.board.pages import BadRequest
from tailrace_server.serving.http.answers import json_answer
from tailrace_server.serving.web.bodies import Bodies
from tailrace_server.serving.web.clients import Clients
from tailrace_server.serving.web.errors import NotJsonLines
from tailrace_server.serving.web.guard import Who
from tailrace_server.serving.web.request import feed_of, level_of, query_of
from tailrace_server.serving.web.versions import range_json

# The rows whose blocks are made in one turn of the loop, which takes some 7 ms.
ROWS_MAX = 10_000
# Empty lines are none, but each takes some time: 8 MiB of them held the loop for a quarter of a second.
LINES_MAX = 4 * ROWS_MAX
BODY_BYTES_MAX = 8 * 1024 * 1024
# The rows that are parsed in one turn of the loop: about 2 ms.
ROWS_PER_TURN = 250
_PARAMETERS = ("level", "producer", "batch")
_BATCH_MAX = 2**63 - 1
_FIELDS = Fields.named(None, None, None)


class Numbered(NamedTuple):
    """The name of a producer, and the number of its batch."""

    producer: str
    batch: int


def numbered_of(query: QueryParams) -> Numbered | None:
    """Returns the producer and the number of the batch in a query; None without them. Raises BadRequest."""
    producer, batch = query.get("producer"), query.get("batch")
    if producer is None and batch is None:
        return None
    if producer is None or batch is None:
        raise BadRequest("producer and batch belong together: a producer numbers its batches, from 0")
    if "level" in query:
        raise BadRequest("a batch of a producer has no level: in a set it is on a majority when it is answered")
    if not 1 <= len(producer) <= NAME_CHARS_MAX or not producer.isprintable():
        raise BadRequest(f"producer is {producer!r:.100}: 1 to {NAME_CHARS_MAX} printable characters are needed")
    if not (batch.isascii() and batch.isdecimal()) or len(batch) > 19 or int(batch) > _BATCH_MAX:
        raise BadRequest(f"batch is {batch!r:.100}, and has to be a number from 0")
    return Numbered(producer, int(batch))


async def changes_of(body: bytes) -> list[Put | Delete]:
    """Returns the changes that JSON lines ask for, and lets others have their turns. Raises BadRecord, TooLarge."""
    changes: list[Put | Delete] = []
    if (lines := body.count(b"\n")) > LINES_MAX:
        raise TooLarge(f"a request may have {ROWS_MAX} rows and {LINES_MAX} lines at most, not {lines}: send several")
    for record in json_records(body.split(b"\n")):
        if len(changes) == ROWS_MAX:
            raise TooLarge(f"a request may have {ROWS_MAX} rows at most: send several")
        changes.append(_with_ttl(_FIELDS.change(record), record))
        if not len(changes) % ROWS_PER_TURN:
            await trio.lowlevel.checkpoint()
    return changes


def _with_ttl(change: Put | Delete, record: Record) -> Put | Delete:
    """Returns the change with the ttl that its record names. Raises BadRecord."""
    ttl = record.fields.get("ttl")
    if ttl is None:
        return change
    if isinstance(change, Delete):
        raise BadRecord(record.place, f"'ttl' is {ttl!r:.60}, and the key is deleted: leave the ttl out")
    try:
        return change._replace(ttl=checked_ttl(ttl))
    except (TypeError, ValueError) as error:
        raise BadRecord(record.place, f"'ttl': {error}") from None


class RowsApi:
    """The answers about several rows of a feed."""

    def __init__(self, clients: Clients, bodies: Bodies) -> None:
        """``bodies`` counts the rows that are being written, with other bodies."""
        self._clients = clients
        self._bodies = bodies

    async def post(self, request: Request, who: Who) -> Response:
        """Writes the rows in the body. Raises as `Feed.write` or `Feed.publish`."""
        feed = feed_of(request.scope["raw_path"])
        query = query_of(request, _PARAMETERS)
        level, numbered = level_of(query), numbered_of(query)
        if request.headers.get("content-encoding", "identity") != "identity":
            raise NotJsonLines("the body has to be JSON lines as they are, without Content-Encoding")
        async with (
            self._bodies.read(request, BODY_BYTES_MAX, "the rows of a request") as body,
            self._clients.client(request, who.shown) as client,
        ):
            changes = await changes_of(body)
            if numbered is None:
                written = await client.on_feed(feed, partial(_write, changes, level))
                return _answer(len(changes), written.values())
            if any(isinstance(change, Put) and change.ttl is not None for change in changes):
                raise BadRequest("a batch of a producer takes no ttls: leave them out, and give the feed one")
            published = await client.on_feed(feed, partial(_publish, changes, numbered))
        return _answer(len(changes), published.written.values(), present=sorted(published.skipped))


async def _write(changes: Sequence[Put | Delete], level: LevelName | None, feed: Feed) -> dict[int, VersionRange]:
    return await feed.write(changes, level=level)


async def _publish(changes: Sequence[Put | Delete], numbered: Numbered, feed: Feed) -> Published:
    stage = await stage_changes(feed, changes)
    return await publish_staged(feed, numbered.producer, numbered.batch, changes, stage)


def _answer(rows: int, written: Iterable[VersionRange], **more: Any) -> Response:
    return json_answer({"rows": rows, "written": [range_json(versions) for versions in written], **more})
