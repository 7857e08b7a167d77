"""Encodes objects that tell of all feeds, for STATUS and LIST_FEEDS.

With ten thousand feeds, one turn of the loop for such an answer would hold up the signs of life of a leader. So each
feed is encoded by itself, a few in a turn, and each partition of it. A feed and a partition are told as they are in
their turn. A feed that is dropped by then is left out.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.wire.frames import encode_frame
from tailrace.wire.opcodes import Opcode
from tailrace_server.replication import in_turns
from tailrace_server.replication.in_turns import InTurns

if TYPE_CHECKING:
    from tailrace_server.feeds.catalog import Catalog
    from tailrace_server.feeds.feed import Feed
    from tailrace_server.serving.access import Access
    from tailrace_server.serving.connection import Connection

# The looks that the state of a partition with its followers takes: 30 of them take about a millisecond.
COST_OF_STATE = 8


class Told(NamedTuple):
    """What an answer tells of a feed: an object, and if ``states`` is there, the elements of its list of that name."""

    feed: dict[str, Any]
    states: Iterable[dict[str, Any]] | None = None

    def whole(self) -> dict[str, Any]:
        """Returns the object with its list."""
        return self.feed if self.states is None else {**self.feed, "states": list(self.states)}


Tell = Callable[["Feed"], Told]


def few(feeds: Catalog) -> bool:
    """Returns whether one turn may tell of all feeds."""
    return feeds.count_partitions() * COST_OF_STATE <= in_turns.LOOKS_AT_ONCE


def answer_of_feeds(connection: Connection, id: int, head: dict[str, Any], tell: Tell) -> None:
    """Answers with ``head`` and the feeds that the client may use: at once if there are few, else by a task.

    Raises Overloaded if too many requests of the connection wait.
    """
    feeds, access = connection.node.feeds, connection.access
    if few(feeds):
        body = _encode({**head, "feeds": [tell(feed).whole() for feed in feeds if access.shows(feed.info.name)]})
        connection.answers.add(encode_frame(Opcode.RESULT, body, id))
        return
    answer_in_turns(connection, id, partial(encode_with_feeds, feeds, head, tell, access))


def answer_in_turns(connection: Connection, id: int, encode: Callable[[], Awaitable[bytes]]) -> None:
    """Answers with the body that ``encode`` makes, in a task. Raises Overloaded if too many requests wait."""
    connection.waiting.begin()
    connection.nursery.start_soon(_answer, connection, id, encode)


async def _answer(connection: Connection, id: int, encode: Callable[[], Awaitable[bytes]]) -> None:
    try:
        body = await encode()
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
            told.append(await _encode_in_turns(tell(feed), turns))
    return _with_list(head, b"feeds", told)


async def _encode_in_turns(told: Told, turns: InTurns) -> bytes:
    if told.states is None:
        return _encode(told.feed)
    states = []
    for state in told.states:
        states.append(_encode(state))
        await turns.look(COST_OF_STATE)
    return _with_list(told.feed, b"states", states)


def _with_list(value: dict[str, Any], name: bytes, elements: list[bytes]) -> bytes:
    """Returns the JSON object ``value`` with one more member, a list."""
    begin = _encode(value)[:-1] + (b"," if value else b"")
    return b"".join([begin, b'"', name, b'":[', b",".join(elements), b"]}"])


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
