"""Estimates the time of a start to read a journal, by its records: neither their bytes nor their count will do. Pure.

    read and check a byte, twice, and copy it      5 ns
    a block                                        9 us
    a publish                                     16 us, and 100 ns for each byte that its record's sum covers
    any other record                              11 us, and 200 ns for each byte: JSON, of a producer or a branch each

Measured on the machine of bench/README.md, rounded up: a single put takes 5 to 8 us, a block of ten rows or a
compressed one 9 to 13, a publish of one block 26, one of four blocks 56. Another machine may take twice as long, or
half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace_server.journal.format import RecordKind

if TYPE_CHECKING:
    from tailrace_server.journal.stretch import Records

_NS_A_BYTE = 5
_NS_A_RECORD = 9_000
_NS_A_PUBLISH = 7_000
_NS_A_COVERED_BYTE = 100
_NS_A_CONTROL = 2_000
_NS_A_CONTROL_BYTE = 200


def replay_ns(nbytes: int, records: int, surplus_ns: int) -> int:
    """Returns the nanoseconds for ``records`` of ``nbytes`` together; ``surplus_ns`` is the sum of their surplus."""
    return nbytes * _NS_A_BYTE + records * _NS_A_RECORD + surplus_ns


def surplus_ns(kind: int, length: int, covered: int) -> int:
    """Returns a record's time beyond that of a block of ``length`` bytes; its sum covers ``covered`` of them."""
    if kind == RecordKind.BLOCK:
        return 0
    if kind == RecordKind.PUBLISHED:
        return _NS_A_PUBLISH + _NS_A_COVERED_BYTE * covered
    return _NS_A_CONTROL + _NS_A_CONTROL_BYTE * length


def surplus_ns_of(heads: Records) -> int:
    """Returns the sum of ``surplus_ns`` over records, by their headers."""
    others = heads[heads["kind"] != RecordKind.BLOCK]
    if not len(others):
        return 0
    is_publish = others["kind"] == RecordKind.PUBLISHED
    publishes, controls = others[is_publish], others[~is_publish]
    return (
        _NS_A_PUBLISH * len(publishes)
        + _NS_A_COVERED_BYTE * int(publishes["covered"].sum(dtype=np.int64))
        + _NS_A_CONTROL * len(controls)
        + _NS_A_CONTROL_BYTE * int(controls["length"].sum(dtype=np.int64))
    )
