"""A consumer with an index in memory that may be stopped after any block, and goes on from its position."""

from __future__ import annotations

import copy

from tailrace.consuming.partition import ConsumedPartition
from tailrace.consuming.resume import ResumeAction, bounds, decide
from tailrace.consuming.ring import Ring
from tailrace.model import EndReason, Level
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position
from tailrace.wire.stream_messages import RollBack, StreamEnd, StreamRequest
from tailrace_server.stream.resume import begin_stream

SNAPSHOTS_MAX = 1_000


class Consumer:
    """Of one partition, at ``level``. ``why`` has the reasons of its rollbacks, ``gone`` counts trimmed restarts."""

    def __init__(self, told, info, level):
        self._info = info
        self._number = told.number
        self.level = level
        self.position = Position.at(FailoverLog(), 0)
        self.rows = {}  # a history: seq -> (key, value); else: key -> (seq, value), deleted keys with None
        self.why = []
        self.gone = 0

    def copy(self):
        other = copy.copy(self)
        other.rows = dict(self.rows)
        other.why = list(self.why)
        return other

    def read(self, node, told, blocks_max=None):
        """Reads to the end, or ``blocks_max`` blocks; whether it came to the end. Raises SegmentDamaged."""
        partition = node.feeds.partition(told.feed_id, told.number)
        self._left = blocks_max
        for _ in range(4):
            stream, consumed = self._ask(node, partition)
            try:
                end = self._follow(stream, consumed, partition, told)
            finally:
                stream.close()
            if end is None:
                return True
            if end == "stopped":
                return False
        raise AssertionError(f"a consumer starts over for ever: {self.why}")

    def _ask(self, node, partition):
        while True:
            position = self.position
            consumed = ConsumedPartition(partition.id, position, Ring(0, 0), None, 0.0)
            asked = bounds(consumed.resume_state)
            request = StreamRequest(
                partition.feed_id, partition.id, position.log, *asked, position.purge_seq, None, self.level
            )
            answer, stream = begin_stream(1, request, partition, node.storage.pins)
            if isinstance(answer, StreamEnd):
                assert answer.reason is EndReason.TRIMMED, f"a consumer is refused: {answer}"
                assert 0 < position.seq < partition.trim_seq == answer.first_seq - 1
                self.gone += 1
                self._start_over(consumed, partition.log)
                continue
            if isinstance(answer, RollBack):
                self.why.append(answer.why)
                assert len(self.why) < 1_000, "a consumer rolls back for ever"
                self._start_over(consumed, answer.log)
                continue
            assert decide(consumed.resume_state, answer).action is ResumeAction.STREAM
            consumed.open(answer, 0.0)
            self.position = consumed.position
            return stream, consumed

    def _start_over(self, consumed, log):
        self.rows.clear()
        self.position = consumed.roll_back_to(0, 0, log)

    def _follow(self, stream, consumed, partition, told):
        """Reads; why it ended: None at the end of what there is."""
        for _ in range(SNAPSHOTS_MAX):
            if not stream.has_news:
                self._check_visible(stream, partition, told)
                return None
            if stream.is_purged:
                self.why.append(EndReason.PURGED.value)
                return "purged"
            if stream.is_trimmed:
                self.gone += 1
                self._start_over(consumed, partition.log)
                return "trimmed"
            stream.begin_snapshot()
            self.position = consumed.start_snapshot(stream.announce())
            if not self._snapshot(stream, consumed):
                return "stopped"
            stream.end_snapshot()
            self.position = consumed.end_snapshot(stream.snapshot_last)
            self._compare(told, stream.snapshot_last, partition)
        raise AssertionError("a stream has news for ever")

    def _snapshot(self, stream, consumed):
        """All blocks of a snapshot; False where it was enough before."""
        while not stream.all_sent:
            block = stream.next_block()
            if block is not None:
                if self._left == 0:
                    return False
                self._left = None if self._left is None else self._left - 1
                self._apply(block, self.position.seq)
                self.position = consumed.advance(max(self.position.seq, block.header.last_seq))
            elif stream.cursor_to_load is not None:
                part = stream.cursor_to_load
                part.loaded(*part.load())
        return True

    def _apply(self, block, above_seq):
        columns = block.columns()
        for seq, key, value in zip(columns.seqs(), columns.keys(), columns.values(), strict=True):
            if seq <= above_seq:
                continue
            if self._info.retention == "history":
                self.rows[seq] = key, value
            else:
                self.rows[key] = seq, value

    # What has to be

    def _check_visible(self, stream, partition, told):
        visible_seq = partition.visible_seq(self.level)
        # A consumer that was promised more than is visible waits for the rest.
        assert self.position.seq >= visible_seq or stream.promised_seq > visible_seq, "a stream ends early"
        if self.level == Level.DISK:
            told.acknowledged(self.position.seq)  # what was shown must not go any more

    def _compare(self, told, seq, partition):
        """At the end of a snapshot the consumer has what the partition had at ``seq``."""
        if self._info.retention == "history":
            kept = range(self._first_kept(partition) + 1, seq + 1)
            found = {row: self.rows[row] for row in self.rows if row in kept}
            expected = {row.seq: (row.key, row.value) for row in told.rows[kept.start - 1 : seq]}
        else:
            expected = {key: (row.seq, row.value) for key, row in told.state_at(seq).items()}
            found = {key: row for key, row in self.rows.items() if row[1] is not None}
        assert found == expected, f"at seq {seq} a consumer {_difference(found, expected)}"

    def _first_kept(self, partition):
        return partition.trim_seq


def _difference(found, expected):
    missing = {key: expected[key] for key in expected if found.get(key) != expected[key]}
    wrong = {key: found[key] for key in found if found[key] != expected.get(key)}
    return f"lacks {missing} and has {wrong}"
