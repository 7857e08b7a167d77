"""Reading again, after a rollback, the keys that were delivered above the point that it led to. Pure.

    keys left ──GET / GOT──> fewer keys left ... none ──how far does the node show?──> H ──> deletions, done

What was found is delivered as it comes, but for the last part: with H the consumer's ring and position change, and an
event has to carry that. A key that the node does not have is a deletion as of H.
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

# Of one GET: its answer is looked up and sent in one piece, beside which other partitions should have their turn.
KEYS_MAX = 1_000
KEY_BYTES_MAX = 256 * 1024
# Of one event; what makes a block, with room for one more value.
_BLOCK_BYTES = BODY_BYTES_MAX - VALUE_BYTES_MAX - 1024 * 1024
assert _BLOCK_BYTES > 0, "a block has room for a value"
# Deletions are events of their own, made as they are asked for: as many at a time.
_DELETIONS = 256


class Refetch:
    """See the module. ``seq`` is where the partition goes back to, ``keys`` are those delivered above it."""

    def __init__(self, partition: int, seq: int, keys: Sequence[bytes], *, keys_only: bool = False) -> None:
        """``keys_only``: the values that a look-up gives are not handed on."""
        self._keys_only = keys_only
        self.seq = seq
        self.keys = keys
        self.as_of: int | None = None  # H, once it is known
        self._partition = partition
        self._left = collections.deque(keys)
        self._highest_seq = seq
        self._held: list[Mutations] = []
        self._absent: collections.deque[bytes] = collections.deque()

    @property
    def keys_left(self) -> bool:
        """There is something to ask the node for."""
        return bool(self._left)

    def next_keys(self) -> list[bytes]:
        """The keys of the next GET; they are left until `found` has had their answer."""
        size = 0
        keys: list[bytes] = []
        for key in islice(self._left, KEYS_MAX):
            size += len(key)
            if keys and size > KEY_BYTES_MAX:
                break
            keys.append(key)
        return keys

    def found(self, items: Sequence[Item | None], log: FailoverLog) -> list[Mutations]:
        """What to deliver of the answer for the first ``len(items)`` keys: all of it, and nothing of the last answer.

        ``log`` is that of the history that the consumer has gone back to. ProtocolError where an item is of another.
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
        """After the last answer the node showed everything up to ``visible_seq``."""
        self.as_of = max(visible_seq, self._highest_seq)

    def rest(self) -> list[Mutations]:
        """Once H is known: what is left to deliver, a part at a time; empty where all has been."""
        assert self.as_of is not None, "a deletion is as of H"
        events, self._held = self._held, []
        for _ in range(min(_DELETIONS, len(self._absent))):
            events.append(self._deletion(self._absent.popleft(), self.as_of))
        return events

    @property
    def rest_is_delivered(self) -> bool:
        """`rest` has nothing more."""
        return not self._held and not self._absent

    def _event(self, items: Sequence[Item]) -> Mutations:
        keys, values = [item.key for item in items], [b"" if self._keys_only else item.value for item in items]
        stamps = Stamps([_seq_of(item) for item in items], [item.timestamp for item in items])
        try:
            block = encode_block(keys, values, partition=self._partition, compress=False, stamps=stamps)
        except ValueError as error:
            raise ProtocolError(f"partition {self._partition}: what was read again is impossible: {error}") from None
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
        raise ProtocolError(f"partition {partition}: {version} was read again, which is not of its history")


def _parts(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """``items`` in parts that fit into a block."""
    start = size = 0
    for index, item in enumerate(items):
        size += len(item.key) + len(item.value) + 64
        if size > _BLOCK_BYTES and index > start:
            yield items[start:index]
            start, size = index, 0
    if items[start:]:
        yield items[start:]
