"""A lane against a partition's real table of producers, over a network and a node that lose things.

What must hold at the end, when everything has healed: every block that was acknowledged is in the partition once, under
the versions that it was told, in the order of submission; none is there twice; what was refused is not there; what was
given up is there at most once. What was withdrawn is sent at most once, never if it was not sent before, and never
answered. Acknowledged blocks may be missing only where the node lost them with level memory.
"""

import contextlib
import functools
import itertools
import random

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.tiers import examples, first_in_test

from tailrace.block import encode_block
from tailrace.errors import (
    NoSpace,
    NotDurable,
    OutcomeUnknown,
    Overloaded,
    TailraceError,
    Unreachable,
    VersionConflict,
)
from tailrace.model import Level, VersionRange
from tailrace.requests.lane import IDLE_SECONDS_MAX, UNANSWERED_MAX, Lane, WriteRequest, WriteState
from tailrace.wire.failures import OutOfOrder
from tailrace_server.state import producers
from tailrace_server.state.producers import ENTRY_AGE_S_MAX, ProducerTable, ResendVerdict

BLOCK = encode_block([b"key"], [b"value"], partition=0)


@pytest.fixture(autouse=True, scope="module")
def tables_look_often():
    """A table looks for producers that are over their age at each new one, as large ones do now and then."""
    before, producers._LOOK_AT_MIN = producers._LOOK_AT_MIN, 1
    yield
    producers._LOOK_AT_MIN = before


class Sent:
    """A WRITE on its way: what of a request the node gets to see, as it was when it was sent."""

    def __init__(self, request):
        self.request = request
        self.producer_id = request.block.header.producer_id
        self.number = request.block.header.producer_seq
        self.resend = request.resend
        self.level = request.level


class Written:
    """A block in the partition's list."""

    def __init__(self, sent, versions):
        self.request = sent.request
        self.producer_id = sent.producer_id
        self.number = sent.number
        self.level = sent.level
        self.versions = versions


class Partition:
    """The node's side: a list, the last seq that was fsynced, and the table of producers, made anew at each start."""

    def __init__(self):
        self.written = []
        self.synced = 0  # how many of `written` are durable
        self.starts = 0
        self.waiting = []  # answers of level disk: (sent, versions)
        self.failed = False  # an fsync has failed: nothing is taken any more
        self.table = ProducerTable()

    @property
    def branch(self):
        return self.starts.to_bytes(16, "big")

    def take(self, sent, verdict, now):
        """The answer to ``sent``, None where it waits for an fsync. ``verdict`` is what else is wrong, if anything."""
        if isinstance(verdict, Overloaded):
            return verdict
        if self.failed:
            return NotDurable("an fsync has failed")
        decision = self.table.decide(sent.producer_id, sent.number, resend=sent.resend, now=now)
        match decision.verdict:
            case ResendVerdict.OUT_OF_ORDER:
                return OutOfOrder("out of order", expected=decision.expected)
            case ResendVerdict.UNKNOWN:
                return OutcomeUnknown("forgotten")
            case ResendVerdict.DUPLICATE:
                versions = decision.result
            case ResendVerdict.ACCEPT:
                if verdict is not None:
                    return verdict
                versions = VersionRange(0, self.branch, len(self.written) + 1, len(self.written) + 1)
                self.written.append(Written(sent, versions))
                self.table.record(sent.producer_id, sent.number, versions, now)
        if sent.level == Level.MEMORY:
            return versions
        self.waiting.append((sent, versions))
        return None

    def sync(self, *, fails=False):
        """Everything is durable, or never will be; the answers that waited for it."""
        answers, self.waiting = self.waiting, []
        self.failed |= fails
        if self.failed:
            return [(sent, NotDurable("an fsync has failed")) for sent, _ in answers]
        self.synced = len(self.written)
        return answers

    def crash(self, kept, now):
        """The node restarts with the first ``kept`` blocks; those that it lost."""
        lost, self.written = self.written[kept:], self.written[:kept]
        self.synced = kept
        self.starts += 1
        self.failed = False
        self.waiting.clear()
        self.table = ProducerTable()
        for block in self.written:
            self.table.record(block.producer_id, block.number, block.versions, now)
        return lost


NOTHING_THERE = VersionRange(0, bytes(16), 0, 0)

# What else is wrong with a block, besides what the table of producers says.
VERDICTS = [None] * 8 + [Overloaded("busy"), NoSpace("full"), VersionConflict("conflict"), NOTHING_THERE]
LEVELS = [Level.MEMORY, Level.DISK]


class World:
    """A lane, a network, a partition. Time stands still but where it is told to pass."""

    def __init__(self, producers_max):
        self.producers_max = producers_max
        self.now = 1000.0
        self.ids = itertools.count(1)
        self.strangers = itertools.count(1_000_000)
        self.lane = Lane(bytes(16), 0, lambda: next(self.ids), self.on_lost)
        self.partition = Partition()
        self.requests = []  # in the order of submission
        self.results = {}  # request -> versions or error
        self.to_node, self.to_client = [], []
        self.lost_after_answer = set()  # acknowledged, then lost with level memory
        self.forgotten = False  # the table has forgotten a producer that may be this lane's
        self.was_paused = False
        self.given_up = set()
        self.withdrawn = {}  # request -> whether it may have been written

    def on_lost(self, ranges):
        assert self.lost_after_answer or self.forgotten, "nothing was lost, and the writer is told so"
        lost = {self.results[request] for request in self.lost_after_answer}
        assert self.forgotten or set(ranges) <= lost, "what is said to be lost is there"

    # The client

    def submit(self, level, count):
        for _ in range(count):
            request = WriteRequest(self.lane, BLOCK, level, None, deadline=0.0, flags=0, if_version=None)
            request.done = functools.partial(self.done, request)
            self.requests.append(request)
            self.lane.submit(request)

    def done(self, request, versions, error):
        assert request not in self.results, "answered twice"
        assert request not in self.withdrawn, "the caller is gone"
        assert (versions is None) != (error is None)
        self.results[request] = versions if error is None else error

    def send(self):
        taken = self.lane.take(self.now)
        assert not self.withdrawn.keys() & set(taken), "sent after it was withdrawn"
        self.to_node += map(Sent, taken)
        assert sum(request.state is not WriteState.QUEUED for request in self.lane.requests()) <= UNANSWERED_MAX

    def give_up(self, index):
        requests = self.lane.requests()
        if not requests:
            return
        request = requests[index % len(requests)]
        uncertain = request.state is WriteState.SENT or request.resend
        self.given_up.add(request)
        self.lane.fail(request, Unreachable("in time", outcome="unknown" if uncertain else "not sent"))

    def withdraw(self, index):
        requests = [request for request in self.lane.requests() if request not in self.withdrawn]
        if requests:
            request = requests[index % len(requests)]
            self.withdrawn[request] = request.state is WriteState.SENT or request.resend
            self.lane.withdraw(request)

    # The network and the node

    def arrive(self, verdict, count):
        for _ in range(min(count, len(self.to_node))):
            self.take(self.to_node.pop(0), verdict)

    def take(self, sent, verdict):
        with producers_bounded(self.producers_max):
            answer = self.partition.take(sent, verdict, self.now)
        self.note_forgotten()
        if answer is not None:
            self.to_client.append((sent, answer))

    def note_forgotten(self):
        self.forgotten |= len(self.partition.table) >= self.producers_max
        self.forgotten |= self.partition.table.snapshot(self.now)[1] is not None

    def sync(self, *, fails):
        self.to_client += self.partition.sync(fails=fails)

    def answer(self, count):
        for _ in range(min(count, len(self.to_client))):
            sent, answer = self.to_client.pop(0)
            if sent.request.state is WriteState.DONE:
                continue
            if isinstance(answer, TailraceError):
                self.lane.refused(sent.request, answer, self.now + 1.0)
            else:
                self.lane.answered(sent.request, answer)

    def lose_link(self, fates):
        """Of what is on its way, that with a verdict arrives all the same; the client has a prefix of the answers."""
        for sent, (arrives, verdict) in zip(self.to_node, fates, strict=False):
            if arrives:
                self.take(sent, verdict)
        self.partition.waiting.clear()
        self.cut()

    def cut(self):
        self.to_node.clear()
        self.to_client.clear()
        self.lane.link_lost()

    def crash(self, loses):
        """The node restarts, without the last ``loses`` of the blocks that were not durable."""
        kept = max(self.partition.synced, len(self.partition.written) - loses)
        with producers_bounded(self.producers_max):
            lost = self.partition.crash(kept, self.now)
        self.note_forgotten()
        for block in lost:
            if self.results.get(block.request) == block.versions:
                assert block.level == Level.MEMORY, "a durable write was lost: the model is wrong"
                self.lost_after_answer.add(block.request)
        self.cut()

    def others_write(self):
        """So many other producers write that the table forgets this one, where it is small."""
        with producers_bounded(self.producers_max):
            for _ in range(5):
                self.partition.table.record(next(self.strangers), 1, VersionRange(0, bytes(16), 1, 1), self.now)
        self.note_forgotten()

    def wait(self, seconds):
        """So much time passes. A blocking client may be paused for hours with blocks that have no answer."""
        self.now += seconds
        self.was_paused |= seconds > IDLE_SECONDS_MAX and len(self.lane) > 0

    def pause(self):
        """The client stands still for over an hour: what it sent arrives, the answers are lost, and others write."""
        self.lose_link([(True, None)] * len(self.to_node))
        self.wait(ENTRY_AGE_S_MAX + 1)
        self.others_write()

    # The end

    def finish(self):
        """Everything works again: whatever is unanswered has to be answered, in a bounded number of turns."""
        if self.partition.failed:
            self.crash(0)
        for _ in range(10 + 4 * len(self.requests)):
            if not len(self.lane):
                break
            self.now += 1.0
            self.send()
            self.arrive(None, len(self.to_node))
            self.sync(fails=False)
            self.answer(len(self.to_client))
        assert not len(self.lane), f"{len(self.lane)} blocks are never answered"
        left = self.withdrawn.keys() - self.results.keys()
        assert set(self.results) == set(self.requests) - left, "a block was never answered"
        self.check()

    def check(self):
        places = {}
        for place, block in enumerate(self.partition.written):
            assert block.request not in places, "written twice"
            places[block.request] = place
            assert block.versions.first_seq == place + 1
        numbers = {request: number for number, request in enumerate(self.requests)}
        order = [numbers[block.request] for block in self.partition.written]
        assert order == sorted(order), "out of the order of submission"
        for request, uncertain in self.withdrawn.items():
            assert uncertain or request not in places, "withdrawn before it was sent, and written"
        for request, result in self.results.items():
            self.check_result(request, result, places.get(request))

    def check_result(self, request, result, place):
        match result:
            case VersionRange(first_seq=0):
                assert place is None, "nothing was to be written"
            case VersionRange() if request in self.lost_after_answer:
                assert place is None
            case VersionRange():
                assert place is not None, "acknowledged, and not there"
                assert self.partition.written[place].versions == result, "told other versions"
            case OutcomeUnknown():
                assert self.forgotten or self.was_paused, "the outcome is said to be unknown without a reason"
            case VersionConflict():
                assert place is None, "refused, and written"
            case Unreachable(outcome="not sent"):
                assert place is None, "said to be not sent, and written"
            case _:
                assert request in self.given_up


@contextlib.contextmanager
def producers_bounded(count):
    """The table holds so few producers meanwhile."""
    before, producers.PRODUCERS_MAX = producers.PRODUCERS_MAX, count
    try:
        yield
    finally:
        producers.PRODUCERS_MAX = before


class LaneModel(RuleBasedStateMachine):
    """Hypothesis decides what happens, and finds the shortest way to what is wrong."""

    @initialize(producers_max=st.sampled_from([1, 2, 10_000]))
    def start(self, producers_max):
        self.world = World(producers_max)

    @rule(level=st.sampled_from(LEVELS), count=st.sampled_from([1, 2, 20]))
    def submit(self, level, count):
        self.world.submit(level, count)

    @rule()
    def send(self):
        self.world.send()

    @rule(index=st.integers(0, 20))
    def give_up(self, index):
        self.world.give_up(index)

    @rule(index=st.integers(0, 20))
    def withdraw(self, index):
        self.world.withdraw(index)

    @precondition(lambda self: self.world.to_node)
    @rule(verdict=st.sampled_from(VERDICTS), count=st.sampled_from([1, 3]))
    def arrive(self, verdict, count):
        self.world.arrive(verdict, count)

    @rule(fails=st.sampled_from([False] * 4 + [True]))
    def sync(self, fails):
        self.world.sync(fails=fails)

    @precondition(lambda self: self.world.to_client)
    @rule(count=st.sampled_from([1, 3]))
    def answer(self, count):
        self.world.answer(count)

    @rule(fates=st.lists(st.tuples(st.booleans(), st.sampled_from(VERDICTS)), max_size=4))
    def lose_link(self, fates):
        self.world.lose_link(fates)

    @rule(loses=st.integers(0, 5))
    def crash(self, loses):
        self.world.crash(loses)

    @rule()
    def others_write(self):
        self.world.others_write()

    @rule(seconds=st.sampled_from([0.5, 2.0, IDLE_SECONDS_MAX + 1, ENTRY_AGE_S_MAX + 1]))
    def wait(self, seconds):
        self.world.wait(seconds)

    @rule()
    def pause(self):
        self.world.pause()

    def teardown(self):
        if hasattr(self, "world"):
            self.world.finish()


LaneModel.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestLaneModel = LaneModel.TestCase


def random_trace(seed):
    """A long trace, in which most things go well and each kind of trouble comes now and then."""
    rnd = random.Random(seed)
    world = World(rnd.choice([1, 2, 10_000, 10_000]))
    trouble = rnd.uniform(0.05, 0.4)
    for _ in range(rnd.choice([10, 30, 80])):
        verdict = rnd.choice(VERDICTS) if rnd.random() < trouble else None
        if rnd.random() < trouble:
            match rnd.randrange(8):
                case 0 | 1:
                    world.lose_link([(rnd.random() < 0.7, rnd.choice(VERDICTS)) for _ in range(20)])
                case 2:
                    world.crash(rnd.randrange(6))
                case 3:
                    world.give_up(rnd.randrange(20))
                case 4:
                    world.others_write()
                case 5:
                    world.wait(rnd.choice([0.5, IDLE_SECONDS_MAX + 1, ENTRY_AGE_S_MAX + 1]))
                case 6:
                    world.withdraw(rnd.randrange(20))
                case 7:
                    world.pause()
        match rnd.randrange(8):
            case 0 | 1:
                world.submit(rnd.choice(LEVELS), rnd.choice([1, 1, 2, 5, 20]))
            case 2 | 3:
                world.wait(1.0)
                world.send()
            case 4 | 5:
                world.arrive(verdict, rnd.choice([1, 2, 20]))
            case 6:
                world.sync(fails=rnd.random() < trouble / 10)
            case 7:
                world.answer(rnd.choice([1, 2, 20]))
    world.finish()


@pytest.mark.slow
@pytest.mark.parametrize("part", first_in_test(range(4), 1))
def test_many_long_traces(part):
    for seed in range(part * 500, part * 500 + 500):
        try:
            random_trace(seed)
        except AssertionError as error:
            error.add_note(f"random_trace({seed})")
            raise
