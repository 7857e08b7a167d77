"""Single rows that leave together, against a node with the real table of producers, over a network that loses things.

What must hold at the end: each row has one answer, unless its caller is gone. A row that was acknowledged is there
once, under the version that it was told. A row that the node refuses takes no other row with it, unless its block is in
doubt. A row whose caller is gone is never sent if it was not, and never sent again.
"""

import functools
import itertools
import random
from unittest import mock

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.tiers import examples

from tailrace.block import Block, encode_block
from tailrace.errors import Forbidden, NotDurable, OutcomeUnknown, Overloaded, TailraceError, Unreachable
from tailrace.model import Level, VersionRange
from tailrace.model.hashing import key_hash
from tailrace.requests.lane import UNANSWERED_MAX, Lane, WriteRequest, WriteState
from tailrace.requests.write_queue import RowWrite, WriteQueue
from tailrace.wire.failures import OutOfOrder
from tailrace_server.state.producers import ProducerTable, ResendVerdict

RETRY_FOR = 30.0
REVOKED = Forbidden("the token was revoked")  # told before the node looks for an earlier copy
UNKNOWN = OutcomeUnknown("this node stepped down")


class Node:
    """A partition: the keys by seq, and the table of producers. It refuses blocks with a bad key for good."""

    def __init__(self):
        self.keys = []
        self.table = ProducerTable()

    def take(self, sent, verdict, now):
        """The answer to ``sent``; ``verdict`` is what else is wrong."""
        if verdict is not None:
            return verdict
        block = sent.block
        decision = self.table.decide(block.header.producer_id, block.header.producer_seq, resend=sent.resend, now=now)
        match decision.verdict:
            case ResendVerdict.OUT_OF_ORDER:
                return OutOfOrder("out of order", expected=decision.expected)
            case ResendVerdict.DUPLICATE:
                return decision.result
        assert decision.verdict is ResendVerdict.ACCEPT
        keys = block.columns().keys()
        if any(key.startswith(b"bad") for key in keys):
            return Forbidden("a key that this token may not write")
        versions = VersionRange(0, bytes(16), len(self.keys) + 1, len(self.keys) + len(keys))
        self.keys += keys
        self.table.record(block.header.producer_id, block.header.producer_seq, versions, now)
        return versions


class Sent:
    """A WRITE as it was when it was sent."""

    def __init__(self, request):
        self.request = request
        self.block = Block.parse(request.block.tobytes())
        self.resend = request.resend


class World:
    def __init__(self):
        self.now = 1_000.0
        self.numbers = itertools.count()
        ids = itertools.count(1)
        self.lane = Lane(bytes(16), 0, lambda: next(ids))
        self.queue = WriteQueue()
        self.node = Node()
        self.rows = {}  # by key
        self.results = {}  # by key
        self.gone = {}  # by key: whether it had been sent
        self.sent_once = set()  # keys
        self.may_share = set()  # keys of blocks that were refused in doubt
        self.to_node, self.to_client = [], []
        self.log = []  # the bytes of all blocks that were sent, with the time and the flag of a resend

    def put(self, count, level, *, bad=False):
        for _ in range(count):
            key = b"%s%d" % (b"bad" if bad else b"k", next(self.numbers))
            done = functools.partial(self.done, key)
            row = RowWrite(self.lane, key, b"v", key_hash(key), level, done, self.now + RETRY_FOR)
            self.rows[key] = row
            self.queue.add_row(row)

    def write(self):
        key = b"block%d" % next(self.numbers)
        block, done = encode_block([key], [b"v"], partition=0), functools.partial(self.done, key)
        self.rows[key] = WriteRequest(self.lane, block, Level.DISK, done, self.now + RETRY_FOR, 0, None)
        self.queue.add(self.rows[key])

    def done(self, key, versions, error):
        assert key not in self.results, "answered twice"
        assert key not in self.gone, "the caller is gone"
        self.results[key] = versions if error is None else error

    def send(self):
        for request in self.queue.take(self.now):
            sent = Sent(request)
            keys = sent.block.columns().keys()
            assert not self.gone.keys() & set(keys), "sent, or sent again, though the caller is gone"
            assert len(set(keys)) == len(keys)
            self.sent_once |= set(keys)
            self.log.append((self.now, request.block.tobytes(), request.resend))
            self.to_node.append(sent)
        assert sum(r.state is not WriteState.QUEUED for r in self.lane.requests()) <= UNANSWERED_MAX

    def withdraw(self, index):
        waiting = [key for key in self.rows if key not in self.results and key not in self.gone]
        if waiting:
            key = waiting[index % len(waiting)]
            self.gone[key] = key in self.sent_once
            self.queue.withdraw(self.rows[key])
            self.queue.withdraw(self.rows[key])  # once more is harmless

    def arrive(self, verdict, count):
        for _ in range(min(count, len(self.to_node))):
            sent = self.to_node.pop(0)
            self.to_client.append((sent, self.node.take(sent, verdict, self.now)))

    def answer(self, count):
        for _ in range(min(count, len(self.to_client))):
            sent, answer = self.to_client.pop(0)
            if sent.request.state is WriteState.DONE:
                continue
            if isinstance(answer, TailraceError):
                if sent.request.resend or answer is REVOKED:
                    self.may_share |= set(sent.block.columns().keys())
                self.queue.refused(sent.request, answer, self.now + 0.1, in_doubt=False)
            else:
                self.queue.answered(sent.request, answer)

    def lose_link(self, arriving):
        """So many of the blocks on their way arrive; all answers are lost."""
        self.arrive(None, arriving)
        self.to_node.clear()
        self.to_client.clear()
        self.queue.link_lost()

    def wait(self, seconds):
        self.now += seconds
        self.queue.expire(self.now, None)
        late = [key for key, row in self.rows.items() if row.deadline <= self.now]
        assert all(key in self.results or key in self.gone for key in late), "not given up in time"

    def finish(self):
        for _ in range(10 + 4 * len(self.rows)):
            if self.queue.is_idle:
                break
            self.now += 0.2
            self.send()
            self.arrive(None, len(self.to_node))
            self.answer(len(self.to_client))
        assert self.queue.is_idle
        assert not self.queue.is_holding
        assert not list(self.queue.requests())
        assert set(self.results) | set(self.gone) == set(self.rows), "a row was never answered"
        seqs = {key: seq for seq, key in enumerate(self.node.keys, 1)}
        assert len(seqs) == len(self.node.keys), "written twice"
        calls = [int(key.lstrip(b"abcdklo")) for key in self.node.keys]
        assert calls == sorted(calls), "written in another order than that of the calls"
        for key, sent in self.gone.items():
            assert sent or key not in seqs, "its caller was gone before it was sent, and it is written"
        for key, result in self.results.items():
            match result:
                case VersionRange():
                    assert result == VersionRange(0, bytes(16), seqs[key], seqs[key]), "told another version"
                case Forbidden():
                    assert key.startswith(b"bad") or key in self.may_share, "refused for the key of another row"
                    assert key.startswith(b"bad") <= (key not in seqs)
                case Unreachable(outcome="not sent"):
                    assert key not in seqs
                case _:
                    assert isinstance(result, Unreachable | OutcomeUnknown), result


VERDICTS = [None] * 6 + [Overloaded("busy"), NotDurable("an fsync has failed"), REVOKED, UNKNOWN]
LEVELS = [Level.DISK, None]


class WriteQueueModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.world = World()

    @rule(count=st.sampled_from([1, 2, 5, 40]), level=st.sampled_from(LEVELS))
    def put(self, count, level):
        self.world.put(count, level)

    @rule()
    def put_bad(self):
        self.world.put(1, Level.DISK, bad=True)

    @rule()
    def write(self):
        self.world.write()

    @rule()
    def send(self):
        self.world.send()

    @rule(index=st.integers(0, 50))
    def withdraw(self, index):
        self.world.withdraw(index)

    @precondition(lambda self: self.world.to_node)
    @rule(verdict=st.sampled_from(VERDICTS), count=st.sampled_from([1, 3, 20]))
    def arrive(self, verdict, count):
        self.world.arrive(verdict, count)

    @precondition(lambda self: self.world.to_client)
    @rule(count=st.sampled_from([1, 3, 20]))
    def answer(self, count):
        self.world.answer(count)

    @rule(arriving=st.integers(0, 3))
    def lose_link(self, arriving):
        self.world.lose_link(arriving)

    @rule(seconds=st.sampled_from([0.2, 1.0, 20.0]))
    def wait(self, seconds):
        self.world.wait(seconds)

    def teardown(self):
        self.world.finish()


WriteQueueModel.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestWriteQueueModel = WriteQueueModel.TestCase


def random_trace(seed):
    rnd, world = random.Random(seed), World()
    for _ in range(rnd.choice([20, 60])):
        match rnd.randrange(12):
            case 0 | 1:
                world.put(rnd.choice([1, 2, 8, 70]), rnd.choice(LEVELS), bad=rnd.random() < 0.1)
            case 2 | 3:
                world.now += 0.2
                world.send()
            case 4 | 5:
                world.arrive(rnd.choice(VERDICTS), rnd.choice([1, 2, 20]))
            case 6 | 7:
                world.answer(rnd.choice([1, 2, 20]))
            case 8:
                world.withdraw(rnd.randrange(100))
            case 9:
                world.write()
            case 10:
                world.lose_link(rnd.randrange(4))
            case 11:
                world.wait(rnd.choice([5.0, 2_000.0]))
    world.finish()
    return world


def trace_of_lone_rows(seed):
    """Most rows have their answer before the next one."""
    rnd, world = random.Random(seed), World()
    for _ in range(20):
        world.now += 0.2
        world.put(rnd.choice([1, 1, 1, 2]), rnd.choice(LEVELS), bad=rnd.random() < 0.1)
        if rnd.random() < 0.1:
            world.withdraw(0)
        world.send()
        match rnd.randrange(12):
            case 0:
                world.lose_link(rnd.randrange(2))
            case 1:
                world.write()
            case 2:
                world.wait(rnd.choice([5.0, 2_000.0]))
            case 3:
                world.withdraw(0)
            case 4:
                world.arrive(rnd.choice(VERDICTS), 1)
        world.arrive(None, 20)
        world.answer(20)
    world.finish()
    return world


def test_a_row_that_is_alone_leaves_as_the_same_block_as_in_general():
    alone = 0

    def take_alone(queue, now):
        nonlocal alone
        row = take(queue, now)
        alone += row is not None
        return row

    take = WriteQueue._take_alone
    for seed in range(examples(100)):
        with mock.patch.object(WriteQueue, "_take_alone", return_value=None):
            general = trace_of_lone_rows(seed)
        with mock.patch.object(WriteQueue, "_take_alone", take_alone):
            found = trace_of_lone_rows(seed)
        assert found.log == general.log
        assert found.node.keys == general.node.keys
    assert alone > 3 * examples(100)


def test_long_traces():
    for seed in range(examples(100)):
        try:
            random_trace(seed)
        except AssertionError as error:
            error.add_note(f"random_trace({seed})")
            raise
