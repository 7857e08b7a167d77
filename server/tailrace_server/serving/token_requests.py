"""The frames about tokens: create, list and revoke them."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.model.tokens import TOKEN_ID_BYTES
from tailrace.wire.bodies import decode_json, encode_json, hex_field
from tailrace.wire.frames import Frame
from tailrace.wire.opcodes import Opcode
from tailrace_server.feeds.token_rows import info_to_json
from tailrace_server.replication.token_changes import record_of_request
from tailrace_server.serving.connection import Connection


def _on_create_token(connection: Connection, frame: Frame) -> None:
    node = connection.node
    connection.require_writable(node.leaderships.system)
    record = record_of_request(decode_json(frame.body, "CREATE_TOKEN"), node.clock.wall_us())
    info = node.token_changes.create(record)
    _answer(connection, encode_json(Opcode.RESULT, info_to_json(info), frame.id), frame.id)


def _on_revoke_token(connection: Connection, frame: Frame) -> None:
    value = decode_json(frame.body, "REVOKE_TOKEN")
    token_id = hex_field(value, "token_id", TOKEN_ID_BYTES, "REVOKE_TOKEN")
    node = connection.node
    connection.require_writable(node.leaderships.system)
    node.token_changes.revoke(token_id)
    _answer(connection, encode_json(Opcode.RESULT, {}, frame.id), frame.id)


def _answer(connection: Connection, data: bytes, id: int) -> None:
    """Answers once a majority has the row. An earlier request may have written it, so that is asked for, too."""
    node, leadership = connection.node, connection.node.leaderships.system
    if leadership.in_set:
        connection.answers.add_confirmed((leadership,), node.feed_changes.seqs(), data, id)
    else:
        connection.answers.add_at(leadership.safest_level, node.feed_changes.seqs(), data, id)


def _on_list_tokens(connection: Connection, frame: Frame) -> None:
    tokens = [info_to_json(info) for info in connection.node.token_changes.tokens()]
    connection.answers.add(encode_json(Opcode.RESULT, {"tokens": tokens}, frame.id))


HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.CREATE_TOKEN: _on_create_token,
    Opcode.LIST_TOKENS: _on_list_tokens,
    Opcode.REVOKE_TOKEN: _on_revoke_token,
}
