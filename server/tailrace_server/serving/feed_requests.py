"""The frames about feeds: create, set, drop and list them, and show the partitions of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace.errors import FeedExists, ProtocolError, UnknownFeed
from tailrace.model import FEED_ID_BYTES, Level
from tailrace.wire.bodies import decode_json, encode_json, field, hex_field
from tailrace.wire.frames import Frame
from tailrace.wire.messages import encode_error
from tailrace.wire.opcodes import Opcode
from tailrace_server.feeds.feed import Feed, info_to_json
from tailrace_server.feeds.feed_settings import changes_of_request
from tailrace_server.replication.role import Role
from tailrace_server.serving.connection import Connection
from tailrace_server.serving.feeds_answer import Told, answer_of_feeds
from tailrace_server.serving.status import partition_map


def _on_create_feed(connection: Connection, frame: Frame) -> None:
    node = connection.node
    connection.require_writable(node.leaderships.system)
    value, before = decode_json(frame.body, "CREATE_FEED"), node.feed_changes.seqs()
    _require_ttls(connection, value.get("ttl_s"))
    try:
        feed = node.feed_changes.create(value)
    except FeedExists as error:
        _answer_of_feeds(connection, encode_error(error, frame.id), frame.id, is_written=False)
        return
    data = encode_json(Opcode.RESULT, info_to_json(feed.info), frame.id)
    _answer_of_feeds(connection, data, frame.id, is_written=node.feed_changes.seqs() != before)


def _on_drop_feed(connection: Connection, frame: Frame) -> None:
    value = decode_json(frame.body, "DROP_FEED")
    try:
        feed_id = bytes.fromhex(value["feed_id"])
    except (KeyError, TypeError, ValueError):
        raise ProtocolError("DROP_FEED: field 'feed_id' is missing, or not hex") from None
    node = connection.node
    connection.require_writable(node.leaderships.system)
    is_here = feed_id in node.feeds
    node.feed_changes.drop(feed_id)
    _answer_of_feeds(connection, encode_json(Opcode.RESULT, {}, frame.id), frame.id, is_written=is_here)


def _on_set_feed(connection: Connection, frame: Frame) -> None:
    value = decode_json(frame.body, "SET_FEED")
    feed_id, changes = hex_field(value, "feed_id", FEED_ID_BYTES, "SET_FEED"), changes_of_request(value)
    node = connection.node
    connection.require_writable(node.leaderships.system)
    _require_ttls(connection, changes.get("ttl_s"))
    before = node.feed_changes.seqs()
    feed = node.feed_changes.set(feed_id, changes)
    data = encode_json(Opcode.RESULT, info_to_json(feed.info), frame.id)
    _answer_of_feeds(connection, data, frame.id, is_written=node.feed_changes.seqs() != before)


def _require_ttls(connection: Connection, ttl_s: Any) -> None:
    """Raises Forbidden if a feed is given a ttl, and a replica would not know of it: it might lose the setting."""
    if ttl_s is not None:
        connection.node.leaderships.system.replicas.require_ttls()


def _answer_of_feeds(connection: Connection, data: bytes, id: int, *, is_written: bool) -> None:
    """``is_written``: the list of feeds has a row that says so. Else a later leader may know better."""
    node, leadership = connection.node, connection.node.leaderships.system
    if leadership.in_set and not is_written:
        connection.answers.add_confirmed((leadership,), node.feed_changes.seqs(), data, id)
    else:
        connection.answers.add_at(leadership.safest_level, node.feed_changes.seqs(), data, id)


def _on_list_feeds(connection: Connection, frame: Frame) -> None:
    answer_of_feeds(connection, frame.id, {}, lambda feed: Told(info_to_json(feed.info)))


def _on_partitions(connection: Connection, frame: Frame) -> None:
    value = decode_json(frame.body, "PARTITIONS")
    node = connection.node
    connection.access.require_feed_named(str(value.get("name")))
    try:
        feed = node.feeds.named(str(value.get("name")))
    except UnknownFeed as error:
        if value.get("replica") is not True:
            raise
        connection.answers.add_error(error, frame.id)  # at once: a majority may need the replica to be heard
        return
    if value.get("leader") is True:
        _answer_as_leader(connection, feed, _level_of_map(value), frame.id)
    else:
        connection.answers.add(encode_json(Opcode.RESULT, partition_map(node, feed), frame.id))


def _answer_as_leader(connection: Connection, feed: Feed, level: Level, id: int) -> None:
    """Answers with the present map once majorities say that this node leads, and its newest rows are at ``level``.

    So the map has every row of the partitions that this node leads, if any node acknowledged it before the request.
    Raises NotLeader if it leads none of them, NotDurable, Forbidden.
    """
    node = connection.node
    all_of_feed = node.leaderships.of_partitions(feed.partitions)
    leaderships = [leadership for leadership in all_of_feed if leadership.role is Role.LEADER]
    if not leaderships:
        raise all_of_feed[0].not_leader()
    if level == Level.QUORUM:
        feed.require_quorum()
        for leadership in leaderships:
            leadership.require_set()
    data = encode_json(Opcode.RESULT, partition_map(node, feed), id)
    led = [partition for partition in feed.partitions if node.leaderships.of_partition(partition) in leaderships]
    needs = [(partition, partition.high_seq) for partition in led]
    connection.answers.add_confirmed(leaderships, needs, data, id, level)


def _level_of_map(value: dict[str, Any]) -> Level:
    """Returns the level that the rows of a partition map have to reach. Raises ProtocolError if it does not exist."""
    text = field(value, "level", str, "PARTITIONS", "memory")
    level = next((level for level in Level if level.name.lower() == text), None)
    if level is None:
        raise ProtocolError(f"PARTITIONS: field 'level' is {text!r:.60}; it is memory, disk or quorum")
    return level


HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.CREATE_FEED: _on_create_feed,
    Opcode.DROP_FEED: _on_drop_feed,
    Opcode.SET_FEED: _on_set_feed,
    Opcode.LIST_FEEDS: _on_list_feeds,
    Opcode.PARTITIONS: _on_partitions,
}
