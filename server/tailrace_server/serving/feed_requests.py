"""The frames about feeds: create, set, drop and list them, and show the partitions of one."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.errors import FeedExists, ProtocolError, UnknownFeed
from tailrace.model import FEED_ID_BYTES
from tailrace.wire.bodies import decode_json, encode_json, hex_field
from tailrace.wire.frames import Frame
from tailrace.wire.messages import encode_error
from tailrace.wire.opcodes import Opcode
from tailrace_server.feeds.feed import info_to_json, mode_of_request
from tailrace_server.serving.connection import Connection
from tailrace_server.serving.status import partition_map


def _on_create_feed(connection: Connection, frame: Frame) -> None:
    node = connection.node
    connection.require_writable(node.leaderships.system)
    before = node.feed_changes.seqs()
    try:
        feed = node.feed_changes.create(decode_json(frame.body, "CREATE_FEED"))
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
    feed_id, mode = hex_field(value, "feed_id", FEED_ID_BYTES, "SET_FEED"), mode_of_request(value)
    node = connection.node
    connection.require_writable(node.leaderships.system)
    before = node.feed_changes.seqs()
    feed = node.feed_changes.set_replication(feed_id, mode)
    data = encode_json(Opcode.RESULT, info_to_json(feed.info), frame.id)
    _answer_of_feeds(connection, data, frame.id, is_written=node.feed_changes.seqs() != before)


def _answer_of_feeds(connection: Connection, data: bytes, id: int, *, is_written: bool) -> None:
    """``is_written``: the list of feeds has a row that says so. Else a later leader may know better."""
    node, leadership = connection.node, connection.node.leaderships.system
    if leadership.in_set and not is_written:
        connection.answers.add_confirmed((leadership,), node.feed_changes.seqs(), data, id)
    else:
        connection.answers.add_at(leadership.safest_level, node.feed_changes.seqs(), data, id)


def _on_list_feeds(connection: Connection, frame: Frame) -> None:
    node = connection.node
    feeds = [info_to_json(feed.info) for feed in node.feeds]
    connection.answers.add(encode_json(Opcode.RESULT, {"feeds": feeds}, frame.id))


def _on_partitions(connection: Connection, frame: Frame) -> None:
    value = decode_json(frame.body, "PARTITIONS")
    node = connection.node
    try:
        feed = node.feeds.named(str(value.get("name")))
    except UnknownFeed as error:
        if value.get("replica") is not True:
            raise
        connection.answers.add_error(error, frame.id)  # at once: a majority may need the replica to be heard
        return
    connection.answers.add(encode_json(Opcode.RESULT, partition_map(node, feed), frame.id))


HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.CREATE_FEED: _on_create_feed,
    Opcode.DROP_FEED: _on_drop_feed,
    Opcode.SET_FEED: _on_set_feed,
    Opcode.LIST_FEEDS: _on_list_feeds,
    Opcode.PARTITIONS: _on_partitions,
}
