"""What the world was told by a node, and what it therefore has to find after each restart.

    given          rows have their seqs: a stream of level memory may have shown them
    acknowledged   an fsync has covered them: they are there for ever

``Ledger.started`` compares a node that was just started with it, and forgets the rows that were lost and never
acknowledged; what the rows are is compared by checks.py.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

from tailrace.model import Level
from tailrace_server.state.producers import ENTRY_AGE_S_MAX, RESULTS_MAX, ResendVerdict

from .consumers import Consumer

# More than all small steps of a life's wall clock come to.
CLOCK_ERROR_SECONDS = 100.0


def partitions_of(node):
    """Those of the feeds that clients have made."""
    return [partition for feed in node.feeds for partition in feed.partitions]


class Row(NamedTuple):
    """A mutation; ``written_at`` is monotonic, so it tells the true age."""

    seq: int
    branch: bytes
    key: bytes
    value: bytes | None
    timestamp: int
    written_at: float


class Result(NamedTuple):
    """What a producer's block was answered with, and when."""

    number: int
    versions: object
    at: float


class ToldPartition:
    """Of one partition. ``rows[i]`` has seq i + 1."""

    def __init__(self, feed_id, number, branch, clock):
        self.feed_id = feed_id
        self.number = number
        self.branch = branch
        self.rows = []
        self.acknowledged_seq = 0
        self.purge_allowed = 0  # tombstones up to here were old enough to go
        self.trim_allowed = 0  # rows up to here were
        self.trim_seq = 0  # what was trimmed, as far as anybody was told
        self.names = {}  # (branch, seq) -> (key, value), for ever
        self.results = {}  # producer -> its results, oldest first
        self.sent = {}  # producer -> the greatest number that it has used
        self.incarnations = {}  # producer -> how often it had to take another id
        self.consumers = []
        self.clock = clock

    def copy(self, clock):
        other = copy.copy(self)
        other.rows = list(self.rows)
        other.names = dict(self.names)
        other.results = {producer: list(results) for producer, results in self.results.items()}
        other.sent = dict(self.sent)
        other.incarnations = dict(self.incarnations)
        other.consumers = [consumer.copy() for consumer in self.consumers]
        other.clock = clock
        return other

    # What happens

    def producer_id(self, producer):
        return producer + 1_000 * self.incarnations.get(producer, 0)

    def next_number(self, producer):
        results = self.results.get(producer)
        return results[-1].number + 1 if results else 1

    def given(self, producer, versions, keys, values, timestamp):
        partition, branch, first_seq, last_seq = versions
        assert partition == self.number
        assert first_seq == len(self.rows) + 1, f"seq {first_seq} was given after {len(self.rows)}"
        assert last_seq - first_seq + 1 == len(keys)
        assert branch == self.branch, "a row is on another branch than the log's newest"
        assert not self.rows or timestamp >= self.rows[-1].timestamp, "a timestamp fell"
        for seq, (key, value) in enumerate(zip(keys, values, strict=True), first_seq):
            assert (branch, seq) not in self.names, f"{branch.hex()}:{seq} was given twice"
            self.names[branch, seq] = key, value
            self.rows.append(Row(seq, branch, key, value, timestamp, self.clock.monotonic()))
        number = self.next_number(producer)
        self.sent[producer] = max(number, self.sent.get(producer, 0))
        self.results.setdefault(producer, []).append(Result(number, versions, self.clock.monotonic()))

    def acknowledged(self, seq):
        self.acknowledged_seq = max(self.acknowledged_seq, seq)

    def allow(self, info, now):
        """What is so old by now may go, and what is nearly so: by what the clock was set by without it being a jump."""
        now += CLOCK_ERROR_SECONDS
        if info.retention == "history":
            if info.history_bytes is not None:
                self.trim_allowed = self.acknowledged_seq
            elif info.history_age_s is not None:
                old = [row.seq for row in self.rows if now - row.written_at >= info.history_age_s]
                self.trim_allowed = max([self.trim_allowed, *old])
            return
        old = [row.seq for row in self.rows if row.value is None and now - row.written_at >= info.tombstone_age_s]
        self.purge_allowed = max([self.purge_allowed, *old])

    # What has to be

    def state_at(self, seq):
        """The rows of the latest values up to ``seq``, by key."""
        latest = {row.key: row for row in self.rows[:seq]}
        return {key: row for key, row in latest.items() if row.value is not None}

    def settle(self, partition, *, is_clean):
        """The node has started: what is not there was lost, and must not have been acknowledged."""
        seq = partition.high_seq
        assert self.acknowledged_seq <= seq, f"acknowledged up to {self.acknowledged_seq}, there is {seq}"
        assert seq <= len(self.rows), f"{len(self.rows)} seqs were given, there is {seq}"
        assert partition.durable_seq == seq, "what was found was not made durable"
        if is_clean:
            assert seq == len(self.rows), "a clean stop lost something"
            assert partition.log.branch == self.branch, "a branch begins after a clean stop"
        else:
            assert partition.log.branch != self.branch, "no branch begins after a crash"
            assert partition.log[0].base == seq
            self.branch = partition.log.branch
        del self.rows[seq:]
        self.acknowledged_seq = seq
        for producer, results in self.results.items():
            while results and results[-1].versions.last_seq > seq:
                results.pop()
            self._check_resends(partition.producers, producer, results)

    def _check_resends(self, table, producer, results):
        """Blocks that are sent again are recognised; the first that was lost is taken."""
        id_, now = self.producer_id(producer), self.clock.monotonic()
        if results and now - results[-1].at >= ENTRY_AGE_S_MAX:
            results.clear()
        # A writer has so many blocks unanswered at most, so it never sends an older one again.
        for number, versions, _ in results[max(0, self.sent[producer] - RESULTS_MAX) :]:
            decision = table.decide(id_, number, resend=True, now=now)
            assert decision.verdict is ResendVerdict.DUPLICATE, f"block {number} of {results} is not recognised"
            assert decision.result == versions, f"block {number} was answered {versions}, and now {decision.result}"
        if not results:  # whatever became of its blocks: it takes another id
            self.incarnations[producer] = self.incarnations.get(producer, 0) + 1
            self.sent[producer] = 0
            return
        decision = table.decide(id_, self.next_number(producer), resend=True, now=now)
        assert decision.verdict is ResendVerdict.ACCEPT, f"a producer's next block is refused: {decision}"


class ToldFeed:
    """Of one feed: what was asked for, and what was answered."""

    def __init__(self, info, branch, clock):
        self.info = info
        self.is_created = False
        self.is_drop_asked = False
        self.is_dropped = False
        self.partitions = [ToldPartition(info.feed_id, number, branch, clock) for number in range(info.partitions)]

    def created(self):
        self.is_created = True

    def dropped(self):
        self.is_dropped = True

    def copy(self, clock):
        other = copy.copy(self)
        other.partitions = [told.copy(clock) for told in self.partitions]
        return other


class Ledger:
    """Of a node. ``is_clean``: it has stopped cleanly; ``is_stopping``: the mark that says so may be there or not."""

    def __init__(self):
        self.feeds = {}
        self.identity = None
        self.is_clean = self.is_stopping = False
        self._was_clean = False
        self.asked = set()  # ids of feeds that somebody has asked for
        self.damaged = set()  # (feed id, partition) whose segments were damaged on purpose
        self.clock = None

    def copy(self, clock):
        other = copy.copy(self)
        other.clock = clock
        other.feeds = {id_: told.copy(clock) for id_, told in self.feeds.items()}
        other.damaged = set(self.damaged)
        other.asked = set(self.asked)
        return other

    def create(self, info, branch):
        return self.feeds.setdefault(info.feed_id, ToldFeed(info, branch, self.clock))

    def of(self, partition):
        return self.feeds[partition.feed_id].partitions[partition.id]

    def allow(self, partition, info, now):
        self.of(partition).allow(info, now)

    def starting(self):
        """The mark of a clean stop may be taken from now on."""
        self.is_stopping |= self.is_clean
        self._was_clean, self.is_clean = self.is_clean, False

    def started(self, node):
        """Compares the node with what was told, and forgets what a crash may have taken. AssertionError."""
        is_clean = node.services.unclean_start is None
        is_empty = not any(told.is_created for told in self.feeds.values())
        assert not is_clean or self.is_stopping or is_empty, "a crash is taken for a clean stop"
        assert is_clean or not self._was_clean, f"a clean stop is taken for a crash: {node.services.unclean_start}"
        self.is_stopping = False
        if self.identity is None:
            self.identity = node.identity
        assert node.identity == self.identity, "the node has become another one"
        self._settle_feeds(node)
        for partition in partitions_of(node):
            self.of(partition).settle(partition, is_clean=is_clean)

    def _settle_feeds(self, node):
        for feed_id, told in list(self.feeds.items()):
            is_there = feed_id in node.feeds
            if told.is_dropped:
                assert not is_there, f"feed {told.info.name} was dropped and is there"
            elif told.is_created and not told.is_drop_asked:
                assert is_there, f"feed {told.info.name} was created and is gone"
            if is_there:
                told.is_created, told.is_drop_asked = True, False
                assert node.feeds.of_id(feed_id).info == told.info
            else:
                del self.feeds[feed_id]
        for feed in node.feeds:
            if feed.info.feed_id in self.asked - self.feeds.keys():  # before anybody was told of it
                self.create(feed.info, feed.first_branch).is_created = True
        assert {feed.info.feed_id for feed in node.feeds} == set(self.feeds), "there is a feed that nobody asked for"

    def consumer(self, partition, level=Level.DISK):
        """One more consumer, at the beginning."""
        consumer = Consumer(self.of(partition), self.feeds[partition.feed_id].info, level)
        self.of(partition).consumers.append(consumer)
        return consumer
