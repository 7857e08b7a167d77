"""The contexts of the sampled writes that the node has taken last. Streams send them with the blocks. Pure."""

from __future__ import annotations

import collections
from bisect import bisect_left
from operator import attrgetter

from tailrace.wire.messages import Trace

# The contexts of a node: about 0.5 MiB. Consumers that are further behind than these sampled writes get no links.
TRACES_MAX = 2_048
# The contexts of one block: bounds what a stream sends besides the block, to 1 KiB.
BLOCK_TRACES_MAX = 16

_LAST_SEQ = attrgetter("last_seq")


class RecentTraces:
    """See the module. The oldest are dropped first, and a restart drops all."""

    def __init__(self, traces_max: int = TRACES_MAX) -> None:
        self._traces_max = traces_max
        # Invariant: the seqs of a list ascend, and none is empty. A branch has its own, since seqs go back with it.
        self._of: dict[tuple[bytes, int, bytes], list[Trace]] = {}
        self._order: collections.deque[tuple[bytes, int, bytes]] = collections.deque()  # the key of each, oldest first

    def __len__(self) -> int:
        return len(self._order)

    def add(self, feed_id: bytes, partition: int, branch: bytes, trace: Trace) -> None:
        """Adds the context of a write with its seqs. Does nothing if it has that write or a later one."""
        key = feed_id, partition, branch
        traces = self._of.setdefault(key, [])
        if traces and traces[-1].last_seq >= trace.first_seq:
            return
        traces.append(trace)
        self._order.append(key)
        if len(self._order) > self._traces_max:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key = self._order.popleft()
        traces = self._of[key]
        del traces[0]
        if not traces:
            del self._of[key]

    def of(self, feed_id: bytes, partition: int, branch: bytes, first_seq: int, last_seq: int) -> list[Trace]:
        """Returns the contexts of writes with rows from ``first_seq`` to ``last_seq``, BLOCK_TRACES_MAX at most."""
        traces = self._of.get((feed_id, partition, branch))
        if traces is None:
            return []
        begin = bisect_left(traces, first_seq, key=_LAST_SEQ)
        return [t for t in traces[begin : begin + BLOCK_TRACES_MAX] if t.first_seq <= last_seq]
