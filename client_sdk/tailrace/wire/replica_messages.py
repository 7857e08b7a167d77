"""The messages between nodes on the streams of a replica. Pure. Layouts: docs/protocol/messages.

The requests between nodes (MEMBER, PROMISE, ...) are JSON objects. The server's handlers read their members.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from tailrace.errors import ProtocolError
from tailrace.wire.bodies import address_field, decode_json, encode_json, field, hex_field, seq_field, unpack
from tailrace.wire.frames import frame_header
from tailrace.wire.opcodes import Opcode

_ACK = struct.Struct("<I4x16sQ")
_SEQS = struct.Struct("<I4xQQ")
_START_BYTES = 8


class Replica(NamedTuple):
    """The replica that asks for a stream: member ``replica`` of a STREAM_REQUEST.

    ``placement_id`` (16 bytes) is the id of its data directory, and ``cluster_id`` (16 bytes) that of its cluster.
    ``term`` is the highest term that it has promised. ``address`` is its listening address, "" if it cannot be reached.
    ``votes`` is true if its acknowledgements count for a majority. ``credits_streams`` is true if it credits each
    stream by itself, besides the connection, so that the leader can give each feed a share of the window. ``start`` (8
    bytes) is a token of its process; b"" from one of an earlier version.
    """

    placement_id: bytes
    term: int
    address: str
    votes: bool
    cluster_id: bytes
    credits_streams: bool = False
    start: bytes = b""

    def to_json(self) -> dict[str, Any]:
        value = {**self._asdict(), "placement_id": self.placement_id.hex(), "cluster_id": self.cluster_id.hex()}
        del value["start"]
        return {**value, "start": self.start.hex()} if self.start else value

    @classmethod
    def from_json(cls, value: Any, what: str) -> Replica | None:
        """Returns the member ``replica`` of a message; None if it is missing. Raises ProtocolError."""
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ProtocolError(f"{what}: field 'replica' is {value!r:.60}, not an object")
        return cls(
            hex_field(value, "placement_id", 16, what),
            seq_field(value, "term", what),
            address_field(value, "address", what),
            field(value, "votes", bool, what),
            hex_field(value, "cluster_id", 16, what),
            field(value, "credits_streams", bool, what, False),
            hex_field(value, "start", _START_BYTES, what) if "start" in value else b"",
        )


class ReplicaAck(NamedTuple):
    """A replica has fsynced a partition up to ``seq``, the end of a run, on ``branch``, the newest of its log."""

    partition: int
    branch: bytes
    seq: int

    def encode(self, id: int) -> bytes:
        return frame_header(Opcode.REPLICA_ACK, _ACK.size, id) + _ACK.pack(*self)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> ReplicaAck:
        return cls(*unpack(_ACK, body, "REPLICA_ACK"))


class LeaderSeqs(NamedTuple):
    """The seqs of a partition on the leader's disk, and on the disks of a majority."""

    partition: int
    durable_seq: int
    quorum_seq: int

    def encode(self, id: int) -> bytes:
        return frame_header(Opcode.LEADER_SEQS, _SEQS.size, id) + _SEQS.pack(*self)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> LeaderSeqs:
        return cls(*unpack(_SEQS, body, "LEADER_SEQS"))


class Producers(NamedTuple):
    """The leader's table of a partition's producers at ``seq``, the end of the next snapshot.

    ``value`` is the result of the server's ``producers_to_json``.
    """

    partition: int
    seq: int
    value: dict[str, Any]

    def encode(self, id: int) -> bytes:
        return encode_json(Opcode.PRODUCERS, self._asdict(), id)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> Producers:
        what = "PRODUCERS"
        value = decode_json(body, what)
        return cls(
            seq_field(value, "partition", what), seq_field(value, "seq", what), field(value, "value", dict, what)
        )
