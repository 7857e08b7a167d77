"""What nodes of a set say to each other on the streams of a replica. Pure. Layouts: docs/protocol/messages.

The requests between nodes (MEMBER, PROMISE, ...) are JSON objects, and their members are with those who read them.
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


class Replica(NamedTuple):
    """Who asks for a stream as a replica: member ``replica`` of a STREAM_REQUEST.

    ``placement_id`` (16 bytes) is that of its data directory, ``term`` the highest that it has promised, ``address``
    where it listens ("" where it cannot be reached), ``votes`` whether its acknowledgements count for a majority;
    ``cluster_id`` (16 bytes) is that of its cluster.
    """

    placement_id: bytes
    term: int
    address: str
    votes: bool
    cluster_id: bytes

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "placement_id": self.placement_id.hex(), "cluster_id": self.cluster_id.hex()}

    @classmethod
    def from_json(cls, value: Any, what: str) -> Replica | None:
        """The member ``replica`` of a message; None where it is missing. ProtocolError."""
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
        )


class ReplicaAck(NamedTuple):
    """A replica holds a partition, fsynced, up to ``seq``, the end of a run, on ``branch``, the newest of its log."""

    partition: int
    branch: bytes
    seq: int

    def encode(self, id: int) -> bytes:
        return frame_header(Opcode.REPLICA_ACK, _ACK.size, id) + _ACK.pack(*self)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> ReplicaAck:
        return cls(*unpack(_ACK, body, "REPLICA_ACK"))


class LeaderSeqs(NamedTuple):
    """How far the leader has a partition on its disk, and how far a majority has."""

    partition: int
    durable_seq: int
    quorum_seq: int

    def encode(self, id: int) -> bytes:
        return frame_header(Opcode.LEADER_SEQS, _SEQS.size, id) + _SEQS.pack(*self)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> LeaderSeqs:
        return cls(*unpack(_SEQS, body, "LEADER_SEQS"))


class Producers(NamedTuple):
    """What the leader remembers of a partition's producers as of ``seq``, where the next snapshot ends.

    ``value`` is what the server's ``producers_to_json`` made.
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
