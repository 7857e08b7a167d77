"""Counts how often nodes could not read a partition's next rows, and tells when no more tries are made. Pure."""

from __future__ import annotations

import collections

# The tries of one node at the same rows: an operator may be putting a good file in the place of the damaged one.
TRIES_MAX = 3


class Damages:
    """The damage that a consumer was told of, by partition. Rows that come in between make it count anew."""

    def __init__(self) -> None:
        self._seqs: dict[int, int] = {}
        self._told: dict[int, collections.Counter[str]] = {}  # by node id

    def is_final(self, partition: int, seq: int, node_id: str) -> bool:
        """Notes that a node cannot read what follows ``seq``. Returns whether it has told so for the last time."""
        if self._seqs.get(partition) != seq:
            self._seqs[partition] = seq
            self._told[partition] = collections.Counter()
        self._told[partition][node_id] += 1
        return self._told[partition][node_id] >= TRIES_MAX
