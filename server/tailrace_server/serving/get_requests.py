"""GET: keys are looked up step by step, and answered once what was found is as safe as asked for."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.model import Level
from tailrace.wire.frames import Frame
from tailrace.wire.messages import Get, Got
from tailrace.wire.opcodes import Opcode
from tailrace_server.replication.role import Role
from tailrace_server.serving.connection import Connection
from tailrace_server.serving.lookup import Lookup
from tailrace_server.serving.steps import run_in_steps


def _on_get(connection: Connection, frame: Frame) -> None:
    get = Get.decode(frame.body)
    node = connection.node
    node.leadership.require_state(get.state)
    if get.level == Level.QUORUM:
        node.leadership.require_set()
    feed = node.feeds.of_id(get.feed_id)
    lookup = Lookup(get.keys, [feed.partition_of(key) for key in get.keys])

    def answer() -> None:
        node.leadership.require_state(get.state)  # it may have changed while the index or the disk was waited for
        data = Got(lookup.items).encode(frame.id)
        needs = lookup.in_flight(get.level)
        if get.level == Level.QUORUM and node.leadership.role is Role.LEADER:
            connection.answers.add_confirmed(needs, data, frame.id)
        elif needs:
            connection.answers.add_at(get.level, needs, data, frame.id)
        else:
            connection.answers.add(data)

    run_in_steps(connection, frame.id, lookup.step, answer, nbytes=len(frame.body), found=lookup.found_bytes)


HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.GET: _on_get,
}
