"""The frames about named consumers and groups: join, commit, renew and release."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.model.position import Positions
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.consumer_messages import Commit, ConsumerId, Hold, Join, Reset
from tailrace.wire.opcodes import Opcode
from tailrace_server.serving.consumer_groups import told_owned

if TYPE_CHECKING:
    from tailrace.wire.frames import Frame
    from tailrace_server.serving.connection import Connection


def _on_join(connection: Connection, frame: Frame) -> None:
    """Gives a program the partitions of its name, with their stored positions; who had the name is told."""
    join = Join.decode(frame.body)
    node = connection.node
    _require(connection, join.consumer)
    if join.consumer.kind == "group":
        _join_group(connection, frame.id, join)
        return
    owned = node.consumers.join(connection, frame.id, join)
    told = told_owned(node.identity.cluster_id, join.consumer, owned)
    answer = encode_json(Opcode.RESULT, told.to_json(), frame.id)
    _answer(connection, answer, frame.id, confirmed=True)


def _join_group(connection: Connection, id: int, join: Join) -> None:
    """Takes a member. It is answered, and gets partitions, when a majority has all rows and has confirmed this node."""
    node, leadership = connection.node, connection.node.leaderships.system
    member = node.consumers.join_group(connection, id, join)

    def joined(error: TailraceError | None) -> None:
        if error is None:
            try:
                told = node.consumers.groups.joined(join.consumer, member)
            except TailraceError as refused:
                error = refused
        if error is not None:
            connection.answers.add_error(error, id)
            return
        connection.answers.add(encode_json(Opcode.RESULT, told, id))
        node.consumers.groups.plan_again(join.consumer)

    def confirmed(error: TailraceError | None) -> None:
        if error is not None:
            joined(error)
            return
        wait = partial(node.waiting.wait, leadership.safest_level, node.feed_changes.seqs())
        connection.answers.until(wait, joined)
        node.storage.committer.hurry()

    connection.answers.until(leadership.confirm, confirmed)


def _on_renew(connection: Connection, frame: Frame) -> None:
    """Begins the lease of a member anew. The answer counts only if a majority has confirmed this node meanwhile."""
    hold = Hold.decode(frame.body, "CONSUMER_RENEW")
    _require(connection, hold.consumer)
    groups, leadership = connection.node.consumers.groups, connection.node.leaderships.system
    groups.renew(hold)

    def confirmed(error: TailraceError | None) -> None:
        if error is None:
            connection.answers.add(groups.renewed(hold, frame.id))
        else:
            connection.answers.add_error(error, frame.id)

    connection.answers.until(leadership.confirm, confirmed)


def _on_release(connection: Connection, frame: Frame) -> None:
    """Takes partitions back that their owner has finished, or all of a member that leaves."""
    hold = Hold.decode(frame.body, "CONSUMER_RELEASE")
    _require(connection, hold.consumer)
    connection.node.consumers.groups.release(hold)
    _answer(connection, encode_json(Opcode.RESULT, {}, frame.id), frame.id, confirmed=False)


def _on_status(connection: Connection, frame: Frame) -> None:
    """Tells the partitions of one consumer or group, their owners and positions."""
    consumer = ConsumerId.of_json(decode_json(frame.body, "CONSUMER_STATUS"), "CONSUMER_STATUS")
    _require(connection, consumer)
    node = connection.node
    positions = Positions(node.identity.cluster_id, consumer.feed_id, node.consumers.positions(consumer))
    told = {**node.consumers.whole(consumer), "positions": str(positions)}
    connection.answers.add(encode_json(Opcode.RESULT, told, frame.id))


def _on_reset(connection: Connection, frame: Frame) -> None:
    """Moves or forgets positions, for an operator."""
    reset = Reset.decode(frame.body)
    _require(connection, reset.consumer)
    if reset.positions is not None:
        reset.positions.require_feed(connection.node.identity.cluster_id, reset.consumer.feed_id)
    connection.node.consumers.reset(reset)
    _answer(connection, encode_json(Opcode.RESULT, {}, frame.id), frame.id, confirmed=True)


def _on_commit(connection: Connection, frame: Frame) -> None:
    """Stores positions. The answer names the partitions that the member does not own any more."""
    commit = Commit.decode(frame.body)
    _require(connection, commit.consumer)
    commit.positions.require_feed(connection.node.identity.cluster_id, commit.consumer.feed_id)
    stale = connection.node.consumers.commit(commit)
    _answer(connection, encode_json(Opcode.RESULT, {"stale": stale}, frame.id), frame.id, confirmed=bool(stale))


def _require(connection: Connection, consumer: ConsumerId) -> None:
    """Raises Forbidden, NotLeader, UnknownFeed unless the connection may use the consumer here."""
    connection.access.require_feed(consumer.feed_id)
    connection.require_writable(connection.node.leaderships.system)
    connection.node.feeds.of_id(consumer.feed_id)


def _answer(connection: Connection, data: bytes, id: int, *, confirmed: bool) -> None:
    """Answers once a majority has the rows, and if ``confirmed`` has said that this node leads."""
    node, leadership = connection.node, connection.node.leaderships.system
    if leadership.in_set and confirmed:
        connection.answers.add_confirmed((leadership,), node.feed_changes.seqs(), data, id)
    else:
        connection.answers.add_at(leadership.safest_level, node.feed_changes.seqs(), data, id)


HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.CONSUMER_JOIN: _on_join,
    Opcode.CONSUMER_COMMIT: _on_commit,
    Opcode.CONSUMER_RENEW: _on_renew,
    Opcode.CONSUMER_RELEASE: _on_release,
    Opcode.CONSUMER_STATUS: _on_status,
    Opcode.CONSUMER_RESET: _on_reset,
}
