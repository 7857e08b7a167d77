"""Reads keys again after a rollback: those that were delivered above the seq that the partition went back to. Pure.

    keys left ──GET / GOT──> fewer keys left ... none ──which seq does the node show?──> H ──> deletions, done

Values are delivered as they come, except those of the last answer: the event after H carries the new ring and position.
A key that the node does not have becomes a deletion at seq H.
"""

from __future__ import annotations

import collections
from itertools import islice
from typing import TYPE_CHECKING

from tailrace.block import BODY_BYTES_MAX, VALUE_BYTES_MAX, Stamps, encode_block, encode_row
from tailrace.consuming.events import Mutations
from tailrace.errors import ProtocolError
from tailrace.model.hashing import key_hash

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.model import Item
    from tailrace.model.failover import FailoverLog

# The keys of one GET. The node sends its answer in one piece, and other partitions wait for that long.
KEYS_MAX = 1_000
KEY_BYTES_MAX = 256 * 1024
# The bytes of one event: a block, with room for one more value.
_BLOCK_BYTES = BODY_BYTES_MAX - VALUE_BYTES_MAX - 1024 * 1024
assert _BLOCK_BYTES > 0, "a block has room for a value"
# The number of deletions that are made at a time, each an event.
_DELETIONS = 256


class Refetch:
    """The keys of one partition that are read again. Only this file sets its fields."""

    def __init__(self, partition: int, seq: int, keys: Sequence[bytes], *, keys_only: bool = False) -> None:
        """Begins with all keys.

        Args:
            partition: The partition, from 0.
            seq: The seq that the partition goes back to.
            keys: The keys that were delivered above ``seq``.
            keys_only: True if the events have no values.
        """
        self._keys_only = keys_only
        self.seq = seq
        self.keys = keys
        self.as_of: int | None = None  # H, once it is known
        self._partition = partition
        self._left = collections.deque(keys)
        self._highest_seq = seq
        self._held: list[Mutations] = []
        self._absent: collections.deque[bytes] = collections.deque()

    def next_keys(self) -> list[bytes]:
        """Returns the keys of the next GET. They stay until `found` has their answer."""
        size = 0
        keys: list[bytes] = []
        for key in islice(self._left, KEYS_MAX):
            size += len(key)
            if keys and size > KEY_BYTES_MAX:
                break
            keys.append(key)
        return keys

    def found(self, items: Sequence[Item | None], log: FailoverLog) -> list[Mutations]:
        """Takes the answer for the first ``len(items)`` keys.

        Args:
            items: The item of each key; None for a key that the node does not have.
            log: The failover log of the history that the partition has gone back to.

        Returns:
            The events to deliver now; none for the last answer, which waits for `measured`.

        Raises:
            ProtocolError: An item is of another history.
        """
        present = []
        for item in items:
            key = self._left.popleft()
            if item is None:
                self._absent.append(key)
            else:
                _check(item, self._partition, log)
                present.append(item)
        present.sort(key=_seq_of)
        if present:
            self._highest_seq = max(self._highest_seq, _seq_of(present[-1]))
        events = [self._event(part) for part in _parts(present)]
        if self._left:
            return events
        self._held = events
        return []

    def measured(self, visible_seq: int) -> None:
        """Takes the seq that the node showed after the last answer."""
        self.as_of = max(visible_seq, self._highest_seq)

    def rest(self) -> list[Mutations]:
        """Returns the next part of the events after H is known; empty if there are no more."""
        assert self.as_of is not None, "a deletion needs H as its seq"
        events, self._held = self._held, []
        for _ in range(min(_DELETIONS, len(self._absent))):
            events.append(self._deletion(self._absent.popleft(), self.as_of))
        return events

    @property
    def rest_is_delivered(self) -> bool:
        """True if `rest` has no more events."""
        return not self._held and not self._absent

    def _event(self, items: Sequence[Item]) -> Mutations:
        keys, values = [item.key for item in items], [b"" if self._keys_only else item.value for item in items]
        stamps = Stamps([_seq_of(item) for item in items], [item.timestamp for item in items])
        try:
            block = encode_block(keys, values, partition=self._partition, compress=False, stamps=stamps)
        except ValueError as error:
            raise ProtocolError(
                f"partition {self._partition}: the node's answer to a GET makes no block: {error}"
            ) from None
        branch = items[-1].version.branch
        return Mutations(block, branch=branch, refetched=True, keys_only=self._keys_only)

    def _deletion(self, key: bytes, seq: int) -> Mutations:
        hash_ = key_hash(key)
        block = encode_row(key, None, hash_=hash_, partition=self._partition, producer_id=0, producer_seq=0)
        return Mutations(block.stamped(seq, 0), refetched=True, keys_only=self._keys_only)


def _seq_of(item: Item) -> int:
    return item.version.seq


def _check(item: Item, partition: int, log: FailoverLog) -> None:
    version = item.version
    if version.partition != partition or version.seq < 1 or log.branch_at(version.seq) != version.branch:
        raise ProtocolError(
            f"partition {partition}: the node's answer to a GET has {version}, which is not of the partition's history"
        )


def _parts(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Yields ``items`` in parts that fit into a block."""
    start = size = 0
    for index, item in enumerate(items):
        size += len(item.key) + len(item.value) + 64
        if size > _BLOCK_BYTES and index > start:
            yield items[start:index]
            start, size = index, 0
    if items[start:]:
        yield items[start:]
