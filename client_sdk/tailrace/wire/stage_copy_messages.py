"""The messages that copy sealed stages within a set of nodes. Pure. Layouts: docs/protocol/messages.

STAGE_COPIES ──> RESULT       copy these stages from a node, say which of them are here, or drop the copies
STAGE_FETCH  ──> STAGE_DATA   a part of a sealed stage's file
"""

from __future__ import annotations

import enum
import struct
from typing import Any, NamedTuple

from tailrace.errors import ProtocolError
from tailrace.model import FEED_ID_BYTES
from tailrace.wire.bodies import address_field, decode_json, field, hex_field, unpack
from tailrace.wire.file_parts import PART_BYTES_MAX, check_part
from tailrace.wire.frames import Frame, frame_header
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stage_messages import STAGE_ID_BYTES, STAGES_MAX

_FETCH = struct.Struct("<16s16sQI4x")
_DATA = struct.Struct("<Q")


class CopyAction(enum.StrEnum):
    """What a node is to do with copies of stages."""

    TAKE = "take"
    FIND = "find"
    DROP = "drop"


class StageCopies(NamedTuple):
    """Asks a member to do ``action`` with these stages of a feed.

    TAKE copies them from the node at ``address``; FIND tells which of them are here; DROP removes them. ``cluster_id``
    is the asker's.
    """

    action: CopyAction
    cluster_id: bytes
    feed_id: bytes
    stages: tuple[bytes, ...]
    address: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the body of a STAGE_COPIES."""
        return {
            "action": self.action.value,
            "cluster_id": self.cluster_id.hex(),
            "feed_id": self.feed_id.hex(),
            "stages": [stage.hex() for stage in self.stages],
            "address": self.address,
        }

    @classmethod
    def decode(cls, body: bytes | memoryview) -> StageCopies:
        what = "STAGE_COPIES"
        value = decode_json(body, what)
        text = field(value, "action", str, what)
        try:
            action = CopyAction(text)
        except ValueError:
            raise ProtocolError(f"{what}: field 'action' is {text!r:.60}, not take, find or drop") from None
        return cls(
            action,
            hex_field(value, "cluster_id", 16, what),
            hex_field(value, "feed_id", FEED_ID_BYTES, what),
            stages_field(value, what),
            address_field(value, "address", what),
        )


def stages_field(value: dict[str, Any], what: str) -> tuple[bytes, ...]:
    """Returns the member ``stages``, at most STAGES_MAX ids of stages. Raises ProtocolError."""
    stages = field(value, "stages", list, what)
    if len(stages) > STAGES_MAX:
        raise ProtocolError(f"{what}: {len(stages)} stages; at most {STAGES_MAX} are accepted")
    return tuple(hex_field({"stages": stage}, "stages", STAGE_ID_BYTES, what) for stage in stages)


class StageCopiesResult(NamedTuple):
    """The RESULT of a STAGE_COPIES: the disk that answers, and the stages that were found there.

    ``placement_id`` is empty if the answer does not tell it.
    """

    placement_id: bytes
    stages: tuple[bytes, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the body of the RESULT."""
        return {"placement_id": self.placement_id.hex(), "stages": [stage.hex() for stage in self.stages]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StageCopiesResult:
        """Reads the body of the RESULT. Raises ProtocolError."""
        what = "the answer to STAGE_COPIES"
        is_told = "placement_id" in value
        return cls(hex_field(value, "placement_id", 16, what) if is_told else b"", stages_field(value, what))


class StageFetch(NamedTuple):
    """Asks for at most ``nbytes`` bytes of a sealed stage's file from ``offset`` on."""

    feed_id: bytes
    stage_id: bytes
    offset: int
    nbytes: int = PART_BYTES_MAX

    def encode(self, id: int) -> bytes:
        return frame_header(Opcode.STAGE_FETCH, _FETCH.size, id) + _FETCH.pack(*self)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> StageFetch:
        found = cls(*unpack(_FETCH, body, "STAGE_FETCH"))
        check_part(found.nbytes, "STAGE_FETCH")
        return found


class StageData(NamedTuple):
    """The answer to a STAGE_FETCH: the bytes of the whole file, and the part that was asked for."""

    file_bytes: int
    data: bytes | memoryview

    def encode(self, id: int) -> bytes:
        head = frame_header(Opcode.STAGE_DATA, _DATA.size + len(self.data), id)
        return b"".join((head, _DATA.pack(self.file_bytes), self.data))

    @classmethod
    def decode(cls, frame: Frame, fetch: StageFetch) -> StageData:
        """Reads the answer to ``fetch``. Raises ProtocolError for another frame, and for another count of bytes."""
        if frame.opcode is not Opcode.STAGE_DATA:
            raise ProtocolError(f"the answer to a STAGE_FETCH is {frame.opcode.name}")
        (file_bytes,) = unpack(_DATA, frame.body, "STAGE_DATA")
        data = memoryview(frame.body)[_DATA.size :]
        wanted = min(fetch.nbytes, max(file_bytes - fetch.offset, 0))
        if len(data) != wanted:
            raise ProtocolError(f"STAGE_DATA: {len(data)} bytes, and {wanted} were asked for")
        return cls(file_bytes, data)
