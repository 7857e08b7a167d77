"""The short way of the most frequent look-up: a GET of one key, at the begin of a read.

    frames of a read ── read_get ──> LoneGet ── answer_at_once ──> index by key, answer
                           └── None ─────┴── no: the general way: FrameDecoder, get_requests.py

Frame and message are unpacked by one call, and checked in one place. The short way accepts only what the general way
accepts. It leaves everything else to the general way before it has changed anything.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tailrace.errors import TailraceError
from tailrace.model import Level
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.wire.frames import FRAME_HEADER_BYTES, FRAME_HEADER_FORMAT, SMALL_BODY_BYTES, header_check
from tailrace.wire.messages import Got, lone_got
from tailrace.wire.opcodes import Opcode
from tailrace_server.partition.newest_row import newest_row
from tailrace_server.partition.partition import Partition
from tailrace_server.replication.role import Role
from tailrace_server.segment import NotCached, Reads
from tailrace_server.serving.connection import TURN_SECONDS, Connection

if TYPE_CHECKING:
    from tailrace_server.serving.services import Services

# As globals: an attribute of an Enum is slow to read, and each GET needs them.
_GET, _LEADER = Opcode.GET, Role.LEADER
_LEVELS = (Level.MEMORY, Level.DISK)  # at quorum, a majority is asked

# The header of a frame, and a GET with the length of its only key.
_START = struct.Struct(FRAME_HEADER_FORMAT + "16sBB2xII")
_FIXED_BYTES = _START.size - FRAME_HEADER_BYTES
# The seconds of a turn in which the index by key catches up with the newest rows, most often with a few single ones.
CATCH_UP_SECONDS = 0.0005
_NOTHING_LOADED = Reads()  # for look-ups that end if they would wait for the disk


class LoneGet(NamedTuple):
    """A GET of one key to a leader, at level memory or disk. ``end`` is the offset of what follows it."""

    end: int
    id: int
    feed_id: bytes
    level: Level
    key: bytes


def read_get(data: bytes, offset: int = 0) -> LoneGet | None:
    """Returns the GET of one key that begins at ``offset``, whole and checked; None for everything else."""
    if len(data) - offset < _START.size:
        return None
    body_bytes, opcode, flags, reserved, id, check, feed_id, level, state, count, key_bytes = _START.unpack_from(
        data, offset
    )
    begin = offset + _START.size
    end = begin + key_bytes
    if (
        opcode != _GET
        or flags
        or reserved
        or level >= len(_LEVELS)
        or state
        or count != 1
        or body_bytes != _FIXED_BYTES + key_bytes
        or body_bytes > SMALL_BODY_BYTES  # longer frames have bounds of their own (tailrace/wire/bounds.py)
        or end > len(data)
        or check != header_check(data[offset:begin] if offset else data)
    ):
        return None
    # NamedTuple's own constructor takes twice as long.
    return tuple.__new__(LoneGet, (end, id, feed_id, _LEVELS[level], data[begin:end]))


def take_gets(connection: Connection, data: bytes) -> int:
    """Answers the GETs of one key that ``data`` begins with. Returns the number of their bytes; the rest is untouched.

    ``data`` has to be a read whose first byte begins a frame, of a client that may read all rows of all feeds. Stops at
    a frame that is no such GET or is unusual, after TURN_SECONDS, and if the client may not ask for more now.
    """
    size, offset, turn = len(data), 0, connection.node.turn
    until = turn.begin() + TURN_SECONDS
    while True:
        end = _take_get(connection, data, offset)
        if not end:
            return offset
        offset = end
        if offset == size or connection.is_closing or connection.memory.lacks_room() or turn.begin() >= until:
            return offset


def _take_get(connection: Connection, data: bytes, offset: int) -> int:
    """Answers the GET at ``offset``, and returns its end. 0: it is no such GET, or unusual, and nothing has changed."""
    get = read_get(data, offset)
    if get is None:
        return 0
    end, id, feed_id, level, key = get
    node = connection.node
    feed = node.feeds.find(feed_id)
    if feed is None:
        return 0
    hash_ = key_hash(key)
    number = partition_of_hash(hash_, len(feed.partitions))
    if node.leaderships.of(feed_id, number).role is not _LEADER:
        return 0
    try:
        is_answered = answer_at_once(
            connection, id, level, key, hash_, feed.partitions[number], is_alone=end - offset == len(data)
        )
    except TailraceError:
        return 0  # the general way meets the same error, or finds the row
    if not is_answered:
        return 0
    node.traffic.request(_GET)
    return end


def answer_at_once(
    connection: Connection,
    id: int,
    level: Level,
    key: bytes,
    hash_: int,
    partition: Partition,
    *,
    is_alone: bool = False,
) -> bool:
    """Answers a GET of one key whose row is in memory, at level memory or disk. False: nothing has happened.

    ``partition`` owns the key, whose hash is ``hash_``. ``is_alone``: the GET is all of a read. Does what `Lookup` does
    in its first step, without the objects for further ones. Raises SegmentDamaged or UnknownFeed.
    """
    node = connection.node
    if partition.keys.indexed_seq < partition.tree.last_seq and not partition.index_keys(_out_of_time(node)):
        return False
    began_at, kept = node.turn.now, node.storage.read_cache
    try:
        found = newest_row(partition, key, None, _NOTHING_LOADED.read, kept, hash_)
    except NotCached:
        return False
    value = None if found is None else found.value
    if found is None or value is None:
        data = Got([None]).encode(id)
    else:
        branch = partition.log.branch_at(found.seq)
        data = lone_got(id, partition.id, branch, found.seq, found.timestamp, value)
    high_seq = partition.high_seq
    node.traffic.get_durations.add(node.clock.monotonic() - began_at)
    if high_seq > partition.visible_seq(level):
        connection.answers.add_at(level, [(partition, high_seq)], data, id)
    elif not (is_alone and connection.pass_answer(data)):
        connection.answers.add(data)
    return True


def _out_of_time(node: Services) -> Callable[[], bool]:
    """True from CATCH_UP_SECONDS on. A turn at whose begin the index is level with the tree needs none."""
    until, monotonic = node.turn.now + CATCH_UP_SECONDS, node.clock.monotonic
    return lambda: monotonic() >= until
