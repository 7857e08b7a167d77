"""Nodes as a consumer's session meets them: histories that fork, fall behind and come back; their side of frames."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.block import Stamps, encode_block
from tailrace.model import Version
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace.model.hashing import key_hash
from tailrace.wire.bodies import encode_json
from tailrace.wire.filters import EVERYTHING
from tailrace.wire.frames import FrameDecoder, encode_frame
from tailrace.wire.messages import Get, Got, HelloOk
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import SnapshotStartMessage, StreamOk, StreamRequest, encode_seq
from tailrace_server.stream.resume import answer_request, promised


def selected(state, wanted):
    """What a filter leaves of {key: value}; None for a value that was not asked for."""
    return {
        key: None if wanted.keys_only else value for key, value in state.items() if key.startswith(wanted.key_prefix)
    }


CLUSTER, FEED = b"c" * 16, b"f" * 16


class Row(NamedTuple):
    seq: int
    key: bytes
    value: bytes | None


@dataclass
class Node:
    """A copy of partition 0. ``history`` is every mutation ever, ``rows`` what is still kept of it."""

    log: FailoverLog
    history: list[Row] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    folded_to: int = 0  # inside of what was folded there is nowhere to stand
    purge_seq: int = 0

    @property
    def high_seq(self):
        return len(self.history)

    def copy(self):
        return Node(self.log, list(self.history), list(self.rows), self.folded_to, self.purge_seq)

    def latest(self):
        return {row.key: row for row in self.history}

    def state(self):
        return {key: row.value for key, row in self.latest().items() if row.value is not None}

    def write(self, key, value):
        row = Row(self.high_seq + 1, key, value)
        self.history.append(row)
        self.rows.append(row)

    def lose(self, count):
        """An unclean stop; what was folded was stable before, and stays."""
        self.history = self.history[: max(self.folded_to, self.high_seq - count)]
        self.rows = [row for row in self.rows if row.seq <= self.high_seq]

    def compact(self, upto):
        """Fold what is up to ``upto`` into one segment: the newest row of each key, and no tombstones."""
        self.folded_to = max(self.folded_to, min(upto, self.high_seq))
        head = {row.key: row for row in self.history if row.seq <= self.folded_to}
        self.purge_seq = max([self.purge_seq, *(row.seq for row in head.values() if row.value is None)])
        kept = {row.seq for row in head.values() if row.value is not None}
        self.rows = [row for row in self.rows if row.seq > self.folded_to or row.seq in kept]


class Cluster:
    """Copies of one partition, one of which leads. The others may answer too, as leaders: they know no better."""

    def __init__(self, nodes=3):
        self.count = self.restores = 0
        founder = Node(FailoverLog([self._entry(1, 0)]))
        self.nodes = [founder.copy() for _ in range(nodes)]
        self.leading = 0

    def _entry(self, term, base):
        self.count += 1
        return FailoverEntry(self.count.to_bytes(16, "big"), term, base)

    @property
    def leader(self):
        return self.nodes[self.leading]

    def node(self, other):
        return self.nodes[(self.leading + other) % len(self.nodes)]

    def _lead(self, node, term_step=1):
        term = term_step + max(known.log.term for known in self.nodes)
        node.log = node.log.with_entry(self._entry(term, node.high_seq))

    def write(self, key, deleted=False):
        self.count += 1
        self.leader.write(key, None if deleted else b"%d" % self.count)

    def crash(self, lost):
        self.leader.lose(lost)
        self._lead(self.leader)

    def replicate(self, other):
        self.nodes[(self.leading + other) % len(self.nodes)] = self.leader.copy()

    def fail_over(self, other):
        self.leading = (self.leading + other) % len(self.nodes)
        self._lead(self.leader)

    def compact(self, other, upto):
        self.node(other).compact(upto)

    def restore(self, other):
        """The leader's directory is replaced by what another node has, as from a backup; its term is the time."""
        self.nodes[self.leading] = self.node(other).copy()
        self.restores += 1
        self._lead(self.leader, self.restores << 20)


class Conversation:
    """A node's side of one connection: answers each frame, and sends everything that a stream asks for."""

    def __init__(self, node, chance: random.Random):
        self.node = node
        self._random = chance
        self._decoder = FrameDecoder()

    def answer(self, data):
        """What the node sends after ``data`` has arrived."""
        frames = self._decoder.receive_data(data)
        return b"".join(part for frame in frames for part in self._answer(frame))

    def _answer(self, frame):
        match frame.opcode:
            case Opcode.HELLO:
                yield HelloOk(1, "0" * 32, CLUSTER.hex(), "", 1 << 20, 10.0, ()).encode()
            case Opcode.PARTITIONS:
                partitions = [{"id": 0, "high_seq": self.node.high_seq}]
                yield encode_json(Opcode.RESULT, {"feed": {"feed_id": FEED.hex()}, "partitions": partitions}, frame.id)
            case Opcode.GET:
                yield self._look_up(Get.decode(frame.body)).encode(frame.id)
            case Opcode.STREAM_REQUEST:
                yield from self._open(frame.id, StreamRequest.decode(frame.body))

    def _look_up(self, get):
        latest, log = self.node.latest(), self.node.log
        found = []
        for key in get.keys[: self._random.randint(1, len(get.keys))]:
            row = latest.get(key)
            if row is None or row.value is None:
                found.append(None)
            else:
                found.append((Version(0, log.branch_at(row.seq), row.seq), 1000 + row.seq, row.value))
        return Got(found)

    def _open(self, id, request):
        node = self.node
        answer = answer_request(
            request,
            log=node.log,
            state="leader",
            high_seq=node.high_seq,
            visible_seq=node.high_seq,
            purge_seq=node.purge_seq,
        )
        yield answer.encode(id)
        if isinstance(answer, StreamOk) and request.seq is not None:
            least = promised(request, answer.seq, node.high_seq)
            yield from self._snapshots(id, answer.seq, least, request.filter)

    def _snapshots(self, id, seq, least, wanted):
        """One or several snapshots up to the end, some of which leave out what is superseded in them.

        Where nothing of one is wanted, as often as not only its end is told.
        """
        node = self.node
        while seq < node.high_seq:
            ends = range(max(seq + 1, least, node.folded_to), node.high_seq + 1)
            last = self._random.choice(ends)
            rows = [row for row in node.rows if seq < row.seq <= last]
            complete = seq >= node.folded_to and self._random.random() < 0.5
            if not complete:
                newest = {row.key: row for row in rows}
                rows = [row for row in rows if newest[row.key] is row]
            if wanted != EVERYTHING:
                rows = [
                    row._replace(value=b"") if wanted.keys_only and row.value is not None else row
                    for row in rows
                    if row.key.startswith(wanted.key_prefix)
                ]
                if not rows and not self.must_announce(seq) and self._random.random() < 0.5:
                    yield encode_seq(Opcode.SEQ_ADVANCED, 0, last, id)
                    seq = last
                    continue
            yield SnapshotStartMessage(0, complete, node.log.branch, seq, last, node.purge_seq).encode(id)
            while rows:
                count = self._random.randint(1, 3)
                yield _block(rows[:count], id)
                rows = rows[count:]
            yield encode_seq(Opcode.SNAPSHOT_END, 0, last, id)
            seq = last

    def must_announce(self, seq):
        """A consumer that begins has to learn the purge seq before it stands anywhere."""
        return seq == 0 and self.node.purge_seq > 0


def _block(rows, id):
    stamps = Stamps([row.seq for row in rows], [1000 + row.seq for row in rows])
    keys, values = [row.key for row in rows], [row.value for row in rows]
    block = encode_block(keys, values, partition=0, stamps=stamps, hashes=[key_hash(key) for key in keys])
    return encode_frame(Opcode.BLOCK, block.tobytes(), id)
