"""Encodes objects that tell of all feeds, for STATUS and LIST_FEEDS.

With ten thousand feeds, one turn of the loop for such an answer would hold up the signs of life of a leader. So each
feed is encoded by itself, a few in a turn. A feed is told as it is in its turn, and left out if it is dropped by then.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tailrace.wire.frames import encode_frame
from tailrace.wire.opcodes import Opcode
from tailrace_server.replication import in_turns
from tailrace_server.replication.in_turns import InTurns

if TYPE_CHECKING:
    from tailrace_server.feeds.catalog import Catalog
    from tailrace_server.feeds.feed import Feed
    from tailrace_server.serving.access import Access
    from tailrace_server.serving.connection import Connection

# Returns what the answer tells of a feed.
Tell = Callable[["Feed"], dict[str, Any]]


def answer_of_feeds(connection: Connection, id: int, head: dict[str, Any], tell: Tell) -> None:
    """Answers with ``head`` and the feeds that the client may use: at once if there are few, else by a task.

    Raises Overloaded if too many requests of the connection wait.
    """
    feeds, access = connection.node.feeds, connection.access
    if feeds.count_partitions() <= in_turns.LOOKS_AT_ONCE:
        body = _encode({**head, "feeds": [tell(feed) for feed in feeds if access.shows(feed.info.name)]})
        connection.answers.add(encode_frame(Opcode.RESULT, body, id))
        return
    connection.waiting.begin()
    connection.nursery.start_soon(_answer, connection, id, head, tell)


async def _answer(connection: Connection, id: int, head: dict[str, Any], tell: Tell) -> None:
    try:
        body = await encode_with_feeds(connection.node.feeds, head, tell, connection.access)
    finally:
        connection.waiting.end()
    connection.answers.add(encode_frame(Opcode.RESULT, body, id))
    connection.node.connections.turn_ended()


async def encode_with_feeds(feeds: Catalog, head: dict[str, Any], tell: Tell, access: Access | None = None) -> bytes:
    """Returns the JSON object of ``head`` and the feeds that ``access`` shows; None: all."""
    turns, told = InTurns(), []
    for feed in feeds:
        await turns.look()
        is_shown = access is None or access.shows(feed.info.name)
        if is_shown and feeds.find(feed.info.feed_id) is feed:
            told.append(_encode(tell(feed)))
    begin = _encode(head)[:-1] + (b"," if head else b"")
    return b"".join([begin, b'"feeds":[', b",".join(told), b"]}"])


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
