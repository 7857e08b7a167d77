"""GET: looks keys up in slices, and answers once the found rows have the level that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tailrace.block.hash_columns import hash_column
from tailrace.model import Level
from tailrace.wire.frames import Frame
from tailrace.wire.messages import Get
from tailrace.wire.opcodes import Opcode
from tailrace_server.replication.leadership import Leadership
from tailrace_server.replication.leaderships import lead_all
from tailrace_server.serving.connection import Connection
from tailrace_server.serving.lone_gets import answer_at_once
from tailrace_server.serving.lookup import Lookup
from tailrace_server.serving.time_slices import run_in_slices

# As a global: an attribute of an Enum is slow to read, and each GET needs it.
_QUORUM = Level.QUORUM
# An answer to this number of keys leaves before the next request is handled, and the client reads it meanwhile.
SENT_ALONE_KEYS_MIN = 256


def _on_get(connection: Connection, frame: Frame) -> None:
    get = Get.decode(frame.body)
    connection.access.require_keys(get.feed_id, get.keys)
    node = connection.node
    feed = node.feeds.find(get.feed_id)
    if feed is None:
        _require_state(node.leaderships.of_feed(get.feed_id), get)
        feed = node.feeds.of_id(get.feed_id)  # it raises
    hashes = hash_column(get.keys)
    partitions = feed.partitions_of(hashes)
    if get.level is _QUORUM:
        feed.require_quorum()
    leaderships = node.leaderships.of_partitions(partitions)
    _require_state(leaderships, get)
    if len(partitions) == 1 and get.level is not _QUORUM:
        [key] = get.keys
        if answer_at_once(connection, frame.id, get.level, key, int(hashes[0]), partitions[0]):
            return
    lookup, began_at = Lookup(get.keys, partitions, node.storage.read_cache, hashes), node.turn.now

    def answer() -> None:
        _require_state(leaderships, get)  # it may have changed while the index or the disk was waited for
        data = lookup.rows.encode(lookup.count, frame.id)
        node.traffic.get_durations.add(node.clock.monotonic() - began_at)
        needs = lookup.in_flight(get.level)
        if get.level is _QUORUM and lead_all(leaderships):
            connection.answers.add_confirmed(leaderships, needs, data, frame.id)
        elif needs:
            connection.answers.add_at(get.level, needs, data, frame.id)
        else:
            connection.answers.add(data)
            if len(get.keys) >= SENT_ALONE_KEYS_MIN:
                connection.flush()

    run_in_slices(connection, frame.id, lookup.step, answer, nbytes=len(frame.body), found=lookup.found_bytes)


def _require_state(leaderships: Iterable[Leadership], get: Get) -> None:
    """Raises NotLeader if the node is not in the state that the request names, NotDurable without a set to ask."""
    for leadership in leaderships:
        leadership.require_state(get.state)
        if get.level is _QUORUM:
            leadership.require_set()


HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.GET: _on_get,
}
