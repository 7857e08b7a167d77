"""Rows that an index cannot take: found in a batch, and written to the feed ``NAME.parked`` with the reason.

The index takes the other rows of the batch first, at its former positions, as if the call had been interrupted. Then
the bad rows are durable in the other feed, and only then the positions move on. A crash in between repeats all of it.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.errors import ProtocolError
from tailrace.indexes.protocol import AppliedMutation, IndexBusy
from tailrace.model import Put, Version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.indexes.applied import AppliedMutations
    from tailrace.model.position import Positions

# A parked row shows these bytes of a value. The feed has all of it, as long as it is the newest.
VALUE_BYTES_MAX = 64 << 10
REASON_CHARS_MAX = 1_000
# Parked rows that are written together.
ROWS_TOGETHER = 100
# Errors that a row can cause. Those of the store, such as a full disk, are none of these.
_CAUSED_BY_ROWS = (ValueError, TypeError, LookupError, ArithmeticError)
_OF_DATABASES = ("IntegrityError", "DataError")  # what each module of a database calls them


class ParkedRow(NamedTuple):
    """A row that an index could not take, as a feed ``NAME.parked`` has it.

    Attributes:
        key: The key.
        version: The version of the mutation in the feed.
        value: The value, or its first 65,536 bytes; None for a deletion.
        timestamp: When the node accepted the mutation, in microseconds since 1970 UTC.
        reason: The type and the text of the index's error.
    """

    key: bytes
    version: Version
    value: bytes | None
    timestamp: int
    reason: str

    def to_value(self) -> bytes:
        """Encodes the row as the value of a parked row.

        Returns:
            A JSON object. A value that is UTF-8 is its ``value``, another one is in ``value_base64``.
        """
        row: dict[str, Any] = {
            "reason": self.reason,
            "partition": self.version.partition,
            "branch": self.version.branch.hex(),
            "seq": self.version.seq,
            "timestamp": self.timestamp,
            "value": None,
        }
        if self.value is not None:
            try:
                row["value"] = self.value.decode()
            except UnicodeDecodeError:
                row["value_base64"] = base64.b64encode(self.value).decode()
        return json.dumps(row).encode()

    @classmethod
    def parse(cls, key: bytes, value: bytes) -> ParkedRow:
        """Reads a row of a feed ``NAME.parked``.

        Args:
            key: The key of the row.
            value: The value of the row.

        Returns:
            The parked row.

        Raises:
            ProtocolError: No follower has written it.
        """
        try:
            row = json.loads(value)
            version = Version(int(row["partition"]), bytes.fromhex(row["branch"]), int(row["seq"]))
            content = None if row["value"] is None else row["value"].encode()
            if "value_base64" in row:
                content = base64.b64decode(row["value_base64"])
            return cls(key, version, content, int(row["timestamp"]), str(row["reason"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProtocolError(f"the value of the key {key!r} is no parked row: {error!r}") from error


class Parking(NamedTuple):
    """The rest of a batch with bad rows.

    Attributes:
        rows: The bad rows.
        finish: Moves the positions of the index on, once the rows are parked. Returns the number of applied rows.
    """

    rows: list[ParkedRow]
    finish: Callable[[], int]

    def changes(self) -> Iterator[list[Put]]:
        """Yields the changes for the feed ``NAME.parked``, in parts."""
        for start in range(0, len(self.rows), ROWS_TOGETHER):
            yield [Put(row.key, row.to_value()) for row in self.rows[start : start + ROWS_TOGETHER]]


def is_of_rows(error: Exception) -> bool:
    """Tells whether rows may have caused ``error`` of an index, and not its store."""
    if isinstance(error, IndexBusy | UnicodeError):
        return isinstance(error, UnicodeError)
    return isinstance(error, _CAUSED_BY_ROWS) or any(kind.__name__ in _OF_DATABASES for kind in type(error).__mro__)


def apply_the_good(
    apply: Callable[[AppliedMutations], None], mutations: AppliedMutations
) -> list[tuple[AppliedMutation, Exception]]:
    """Applies the rows that the index can take: in halves, wherever a call fails.

    Args:
        apply: Applies some of the rows, all or none.
        mutations: The rows.

    Returns:
        The others, each with its error.
    """
    try:
        apply(mutations)
    except Exception as error:
        if not is_of_rows(error):
            raise
        if len(mutations) == 1:
            return [(mutations[0], error)]
        half = len(mutations) // 2
        return [*apply_the_good(apply, mutations[:half]), *apply_the_good(apply, mutations[half:])]
    return []


def parked_row(mutation: AppliedMutation, error: Exception, positions: Positions) -> ParkedRow:
    """Returns a bad row. ``positions`` are those after its batch, which know its branch."""
    partition, key, value, seq, timestamp = mutation
    branch = positions[partition].log.branch_at(seq)
    reason = f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
    shown = None if value is None else value[:VALUE_BYTES_MAX]
    return ParkedRow(key, Version(partition, branch, seq), shown, timestamp, reason)
