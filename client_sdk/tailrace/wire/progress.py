"""PROGRESS: how far a program has come that handles rows elsewhere than on the connection on which it tells so."""

from __future__ import annotations

from typing import Any, NamedTuple

from tailrace.errors import ProtocolError
from tailrace.model import Level
from tailrace.model.failover import SEQ_MAX
from tailrace.wire.bodies import decode_json, field, hex_field

WHAT = "PROGRESS"


class Progress(NamedTuple):
    """The seq of each partition of a feed up to which a consumer has handled all rows of a level."""

    feed_id: bytes
    level: Level
    seqs: dict[int, int]

    def to_json(self) -> dict[str, Any]:
        seqs = {str(partition): seq for partition, seq in self.seqs.items()}
        return {"feed_id": self.feed_id.hex(), "level": self.level.name.lower(), "seqs": seqs}

    @classmethod
    def decode(cls, body: memoryview) -> Progress:
        """Returns the message. Raises ProtocolError for one that is none."""
        value = decode_json(body, WHAT)
        text = field(value, "level", str, WHAT, "disk")
        try:
            level = Level.parse(text)
        except ValueError as error:
            raise ProtocolError(f"{WHAT}: {error}") from None
        seqs = {}
        for name, seq in field(value, "seqs", dict, WHAT).items():
            if not (name.isascii() and name.isdigit() and len(name) <= 5):
                raise ProtocolError(f"{WHAT}: {name!r:.40} in 'seqs' is not the number of a partition")
            if type(seq) is not int or not 0 <= seq <= SEQ_MAX:
                raise ProtocolError(f"{WHAT}: {seq!r:.40} of partition {name} is not a seq")
            seqs[int(name)] = seq
        return cls(hex_field(value, "feed_id", 16, WHAT), level, seqs)
