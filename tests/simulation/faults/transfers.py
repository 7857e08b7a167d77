"""The frames by which nodes send each other segments: faults wait for them, and change them.

    OFFER ACCEPT DECLINE TRANSIT ACK       a leader pushes
    CHECKPOINT its RESULT FETCH DATA       a follower pulls

`Transfers` sees each frame before it is sent. A fault is *armed* for the next frames of an opcode, and decides what is
sent instead, and whether the connection ends there. With that it may kill a node, fill a disk, or cut the network.
"""

from __future__ import annotations

import collections
import json

import xxhash

from tailrace.segment.ends import END_BYTES
from tailrace.wire.frames import FRAME_HEADER_BYTES, encode_frame, frame_header
from tailrace.wire.opcodes import Opcode
from tailrace.wire.push_messages import SegmentDecline, SegmentOffered
from tailrace.wire.segment_messages import SegmentFetch

PUSHING = (
    Opcode.SEGMENT_OFFER,
    Opcode.SEGMENT_ACCEPT,
    Opcode.SEGMENT_DECLINE,
    Opcode.SEGMENT_TRANSIT,
    Opcode.SEGMENT_ACK,
)
PULLING = (Opcode.SEGMENT_CHECKPOINT, Opcode.SEGMENT_FETCH, Opcode.SEGMENT_DATA, Opcode.SEGMENT_RELEASE)
# A repeated one has no effect.
ANSWERS = (Opcode.SEGMENT_ACCEPT, Opcode.SEGMENT_DECLINE, Opcode.SEGMENT_ACK)
# The bytes in the body of a part before those of the file: the number of the offer, and the offset.
PART_HEAD_BYTES = {Opcode.SEGMENT_TRANSIT: 16, Opcode.SEGMENT_DATA: 0}


class WireFrame:
    """A frame on its way from ``sender`` to ``receiver``, which are machines' names; ``pipe`` is the way."""

    def __init__(self, pipe, data):
        self.sender, self.receiver = pipe.link
        self.pipe = pipe
        self.data = data
        self.opcode = Opcode(data[4])
        self.id = int.from_bytes(data[8:12], "little")

    @property
    def body(self):
        return self.data[FRAME_HEADER_BYTES:]

    @property
    def head_bytes(self):
        """The count of bytes before those of the file, in a part."""
        return FRAME_HEADER_BYTES + PART_HEAD_BYTES[self.opcode]

    def with_body(self, body):
        """Returns the bytes of a frame with another body."""
        return frame_header(self.opcode, len(body), self.id) + body


class Transfers:
    """All frames of a set. ``world.network.harm`` is this object as long as the run lasts."""

    def __init__(self, world):
        self._world = world
        self._names = frozenset(world.names)
        self._armed = collections.defaultdict(list)  # by opcode: functions of a WireFrame
        self._foreign = ForeignFiles(world)
        self._compactions = {}  # of each pipe of a sender: the count of compactions when its last transfer began

    def arm(self, opcode, action):
        """Calls ``action(frame)`` with each frame of ``opcode``, until ``disarm``.

        It returns the bytes to send instead, and whether the connection ends with them.
        """
        self._armed[opcode].append(action)

    def disarm(self, opcode, action):
        """Ends ``arm``; may be called again."""
        if action in self._armed[opcode]:
            self._armed[opcode].remove(action)

    def end(self):
        """Ends all faults."""
        self._armed.clear()
        self._foreign.end()

    def end_foreign_files(self):
        """Ends `begin_foreign_files`; the transfers that have begun go on."""
        self._foreign.end()

    def begin_foreign_files(self, rnd, chance):
        """Lets nodes offer and send other files than those of the segments that they name, until ``end``."""
        self._foreign.begin(rnd, chance)

    def __call__(self, transport, data):
        """Returns what is sent instead of whole frames, and whether the connection ends there."""
        pipe = transport.outgoing
        if not self._names.issuperset(pipe.link):
            return data, False
        sent, place = bytearray(), 0
        while place + FRAME_HEADER_BYTES <= len(data):
            end = place + FRAME_HEADER_BYTES + int.from_bytes(data[place : place + 4], "little")
            changed, is_end = self._pass(WireFrame(pipe, bytes(data[place:end])))
            sent += changed
            if is_end:
                return bytes(sent), True
            place = end
        return bytes(sent) + data[place:], False

    def _pass(self, frame):
        self._note(frame)
        frame.data = self._foreign.changed(frame)
        if not frame.data:
            return b"", False
        for action in list(self._armed[frame.opcode]):
            data, is_end = action(frame)
            if is_end or data != frame.data:
                return data, is_end
        return frame.data, False

    def _note(self, frame):
        operations = self._world.report.operations
        if frame.opcode in PUSHING or frame.opcode in PULLING:
            operations[f"frame {frame.opcode.name}"] += 1
        if frame.opcode is Opcode.SEGMENT_DECLINE:
            operations[f"declined as {SegmentDecline.decode(frame.body).reason}"] += 1
        count = operations["compaction"] + operations["purge"]
        if frame.opcode in (Opcode.SEGMENT_ACCEPT, Opcode.SEGMENT_CHECKPOINT):
            self._compactions[frame.pipe.back] = count
        elif frame.opcode in PART_HEAD_BYTES and count > self._compactions.get(frame.pipe, count):
            operations["compaction within a transfer"] += 1
            self._compactions[frame.pipe] = count


class ForeignFiles:
    """Replaces the files that nodes send by files of other segments, mostly of another partition, with true checksums.

    So all but the header in the file says that it is the right one, as if a node had mixed up its files.
    """

    def __init__(self, world):
        self._world = world
        self._chance = 0.0
        self._random = None
        self._pushed = {}  # (pipe, stream id): the number of the offer, and the bytes of the file
        self._told = {}  # (pipe, segment id): the bytes of the file
        self._asked = {}  # (pipe, request id): the request

    def begin(self, rnd, chance):
        self._random, self._chance = rnd, chance

    def end(self):
        self._chance = 0.0

    def changed(self, frame):
        """Returns the bytes that are sent for ``frame``; none if the file that is sent instead has ended."""
        if frame.opcode is Opcode.SEGMENT_OFFER:
            return self._offer(frame)
        if frame.opcode is Opcode.SEGMENT_TRANSIT and (frame.pipe, frame.id) in self._pushed:
            return self._transit(frame)
        if frame.opcode is Opcode.RESULT and self._chance and b'"kept_s"' in frame.body:
            return self._checkpoint(frame)
        if frame.opcode is Opcode.SEGMENT_FETCH and self._told:
            self._asked[frame.pipe.back, frame.id] = SegmentFetch.decode(frame.body)
        if frame.opcode is Opcode.SEGMENT_DATA and self._told:
            return self._fetched(frame)
        return frame.data

    def _other_file(self, sender, segment_id, nbytes):
        """Returns the bytes of another segment's file of the sender, at most ``nbytes``; None: there is none."""
        machine = self._world.machine(sender)
        if not machine.is_up or self._random.random() >= self._chance:
            return None
        segments = [s for partition in machine.life.node.feeds.partitions() for s in partition.chain.segments]
        names = [s.path for s in segments if s.identity.segment_id != segment_id and s.nbytes <= nbytes]
        if not names:
            return None
        self._world.report.fault("transfer: file of another segment", sender)
        self._world.network.harmed += 1
        return bytes(machine.disk.content(self._random.choice(names)))

    def _offer(self, frame):
        offer = SegmentOffered.decode(frame.body)
        self._pushed.pop((frame.pipe, frame.id), None)
        data = self._other_file(frame.sender, offer.id, offer.nbytes) if self._chance else None
        if data is None:
            return frame.data
        self._pushed[frame.pipe, frame.id] = offer.number, data
        return offer._replace(nbytes=len(data), checksum=checksum_of(data)).encode(frame.id)

    def _transit(self, frame):
        number, data = self._pushed[frame.pipe, frame.id]
        if int.from_bytes(frame.body[:8], "little") != number:
            return frame.data
        offset = int.from_bytes(frame.body[8:16], "little")
        part = data[offset : offset + len(frame.body) - 16]
        return frame.with_body(frame.body[:16] + part) if part else b""

    def _checkpoint(self, frame):
        told = json.loads(frame.body)
        for segment in told["segments"]:
            data = self._other_file(frame.sender, bytes.fromhex(segment["id"]), segment["bytes"])
            if data is not None:
                segment["bytes"], segment["checksum"] = len(data), checksum_of(data).hex()
                self._told[frame.pipe, bytes.fromhex(segment["id"])] = data
        return encode_frame(frame.opcode, json.dumps(told).encode(), frame.id)

    def _fetched(self, frame):
        fetch = self._asked.pop((frame.pipe, frame.id), None)
        data = None if fetch is None else self._told.get((frame.pipe, fetch.segment_id))
        return frame.data if data is None else frame.with_body(data[fetch.offset : fetch.offset + fetch.nbytes])


def checksum_of(data):
    """Returns the checksum of a segment's file, as its trailer has it."""
    return xxhash.xxh3_128_digest(data[:-END_BYTES])
