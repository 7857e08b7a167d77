"""Single rows of what ``test_lane_model`` tries at random: each is a case that was wrong once, or may be."""

import itertools

import pytest

from tailrace.block import encode_block
from tailrace.errors import NoSpace, NotDurable, OutcomeUnknown, Overloaded, Unreachable, VersionConflict
from tailrace.model import Level, VersionRange
from tailrace.requests.lane import (
    IDLE_SECONDS_MAX,
    NUMBER_MAX,
    UNANSWERED_MAX,
    Lane,
    Lanes,
    WriteRequest,
    WriteState,
)
from tailrace.wire.failures import OutOfOrder

BLOCK = encode_block([b"k"], [b"v"], partition=0)
NOTHING_THERE = VersionRange(0, bytes(16), 0, 0)


def versions(seq):
    return VersionRange(0, b"u" * 16, seq, seq)


class LaneInTest:
    """A lane, with what it says noted."""

    def __init__(self):
        self.now = 0.0
        self.ids = itertools.count(1)
        self.lost = []
        self.results = {}
        self.lane = Lane(bytes(16), 0, lambda: next(self.ids), self.lost.append)

    def submit(self, count=1):
        made = []
        for _ in range(count):
            request = WriteRequest(self.lane, BLOCK, Level.DISK, None, deadline=0.0, flags=0, if_version=None)
            request.done = lambda found, error, request=request: self.results.setdefault(request, found or error)
            self.lane.submit(request)
            made.append(request)
        return made

    def take(self, now=None):
        """(producer id, number, flagged as a resend) of each block that is sent now."""
        return [
            (request.block.header.producer_id, request.block.header.producer_seq, request.resend)
            for request in self.lane.take(self.now if now is None else now)
        ]

    def answer(self, request, seq):
        self.lane.answered(request, versions(seq))

    def refuse(self, request, error, hold_until=0.0):
        self.lane.refused(request, error, hold_until)

    def bounce(self, request, expected):
        self.refuse(request, OutOfOrder("", expected=expected))


@pytest.fixture
def made():
    return LaneInTest()


def numbers(first, last, *, id=1, resend=False):
    return [(id, number, resend) for number in range(first, last + 1)]


def test_blocks_are_numbered_in_the_order_of_submission(made):
    requests = made.submit(3)
    assert made.take() == numbers(1, 3)
    assert made.take() == []
    for seq, request in enumerate(requests, 1):
        made.answer(request, seq)
    assert made.results == {request: versions(seq) for seq, request in enumerate(requests, 1)}
    assert len(made.lane) == 0
    made.submit()
    assert made.take() == numbers(4, 4)


def test_no_more_than_16_are_unanswered(made):
    requests = made.submit(40)
    assert made.take() == numbers(1, 16)
    made.answer(requests[0], 1)
    assert made.take() == numbers(17, 17)
    assert len(made.lane) == 39
    assert made.lane.requests() == requests[1:]


def test_answers_out_of_order_do_not_push_the_oldest_out_of_what_the_node_remembers(made):
    """Level memory is answered at once, level disk after the fsync: the node knows the last 16 results only."""
    oldest, *others = made.submit(UNANSWERED_MAX + 10)
    made.take()
    for seq, request in enumerate(others[: UNANSWERED_MAX - 1], 2):
        made.answer(request, seq)
    assert made.take() == []
    made.answer(oldest, 1)
    assert made.take() == numbers(17, 26)


def test_after_a_lost_connection_all_is_sent_again_in_order(made):
    requests = made.submit(20)
    made.take()
    made.answer(requests[0], 1)
    made.lane.link_lost()
    assert made.take() == numbers(2, 16, resend=True) + numbers(17, 17)


def test_what_was_not_sent_is_not_flagged(made):
    made.submit(1)
    made.lane.link_lost()
    assert made.take() == numbers(1, 1)


def test_what_is_refused_for_now_goes_again_with_those_after_it(made):
    first, second, third = made.submit(3)
    made.take()
    made.refuse(first, NoSpace("full"), hold_until=5.0)
    assert made.lane.is_held
    assert made.take(10.0) == [], "others are still under way"
    made.bounce(second, 1)
    made.bounce(third, 1)
    assert made.take(4.0) == []
    assert made.take(5.0) == numbers(1, 3)
    assert made.results == {}


def test_a_lost_connection_does_not_wait_for_a_hold(made):
    (request,) = made.submit()
    made.take()
    made.refuse(request, Overloaded(""), hold_until=5.0)
    made.lane.link_lost()
    assert made.take(0.0) == numbers(1, 1)


def test_what_is_refused_for_good_frees_its_number(made):
    first, second, third = made.submit(3)
    made.take()
    made.refuse(first, VersionConflict("no"))
    assert isinstance(made.results[first], VersionConflict)
    made.bounce(second, 1)
    made.bounce(third, 1)
    assert made.take() == numbers(1, 2)
    made.answer(second, 1)
    made.submit()
    assert made.take() == numbers(3, 3)
    assert made.lost == []


def test_what_was_not_there_to_be_deleted_frees_its_number(made):
    first, second = made.submit(2)
    made.take()
    made.lane.answered(first, NOTHING_THERE)
    assert made.results == {first: NOTHING_THERE}
    made.bounce(second, 1)
    assert made.take() == numbers(1, 1)


def test_what_may_have_been_written_stays_in_doubt_when_it_is_refused_for_now(made):
    """The node may refuse before it looks whether it has the block."""
    (request,) = made.submit()
    made.take()
    made.lane.link_lost()
    made.take()
    made.refuse(request, Overloaded("busy"))
    assert made.take() == numbers(1, 1, resend=True)


def test_a_failed_fsync_leaves_a_block_in_doubt(made):
    (request,) = made.submit()
    made.take()
    made.refuse(request, NotDurable("fsync failed"))
    assert made.take() == numbers(1, 1, resend=True)


def test_a_bounce_ends_the_doubt(made):
    first, second = made.submit(2)
    made.take()
    made.lane.link_lost()
    made.take()
    made.refuse(first, NoSpace("full"))
    made.bounce(second, 1)
    assert made.take() == [(1, 1, True), (1, 2, False)]


def test_acknowledged_writes_that_are_lost_are_named_and_a_new_producer_begins(made):
    requests = made.submit(5)
    made.take()
    for seq in (1, 2, 3):
        made.answer(requests[seq - 1], seq)
    made.bounce(requests[3], 2)
    made.bounce(requests[4], 2)
    assert made.lost == [[versions(2), versions(3)]]
    assert made.take() == numbers(1, 2, id=2)
    made.answer(requests[3], 2)
    made.answer(requests[4], 3)
    assert len(made.lost) == 1


def test_with_acknowledged_writes_given_up_ones_may_be_lost_too(made):
    first, second, third = made.submit(3)
    made.take()
    made.lane.fail(first, Unreachable("", outcome="unknown"))
    made.answer(second, 2)
    made.bounce(third, 1)
    assert made.lost == [[versions(2)]]


def test_what_was_given_up_and_never_arrived_is_not_lost(made):
    first, second = made.submit(2)
    made.take()
    made.lane.fail(first, Unreachable("", outcome="unknown"))
    made.bounce(second, 1)
    assert made.lost == []
    assert made.take() == numbers(1, 1, id=2)


def test_numbers_that_move_take_given_up_ones_along(made):
    first, second, third = made.submit(3)
    made.take()
    made.lane.fail(second, Unreachable("", outcome="unknown"))
    made.refuse(first, VersionConflict("no"))
    made.bounce(third, 1)
    assert made.lost == []
    assert made.take() == numbers(1, 1, id=2)


def test_what_was_given_up_before_it_was_sent_leaves_no_gap(made):
    first, second, third = made.submit(3)
    made.lane.fail(second, Unreachable(""))
    assert made.take() == numbers(1, 2)
    made.refuse(first, NoSpace("full"))
    made.lane.fail(first, NoSpace("full"))
    made.bounce(third, 1)
    assert made.take() == numbers(1, 1)


def test_a_new_producer_waits_until_nothing_is_in_doubt(made):
    """Under a new producer id what was written already would be written again."""
    first, second, third = made.submit(3)
    made.take()
    made.lane.link_lost()
    made.take()
    made.refuse(first, OutcomeUnknown("forgotten"))
    made.lane.link_lost()
    assert made.take() == [(1, 2, True), (1, 3, True)]
    made.answer(second, 2)
    made.bounce(third, 3)
    assert made.take() == numbers(1, 1, id=2)


def test_a_number_that_the_node_had_and_forgot_has_an_unknown_outcome(made):
    first, second = made.submit(2)
    made.take()
    made.lane.link_lost()
    made.take()
    made.bounce(first, 18)
    assert isinstance(made.results[first], OutcomeUnknown)
    assert second.state is WriteState.SENT
    made.bounce(second, 18)
    assert isinstance(made.results[second], OutcomeUnknown)
    made.submit()
    assert made.take() == numbers(1, 1, id=2)
    assert made.lost == []


def test_an_idle_producer_takes_a_new_id(made):
    (first,) = made.submit()
    made.take()
    made.answer(first, 1)
    made.submit()
    assert made.take(IDLE_SECONDS_MAX) == numbers(2, 2)
    made.answer(made.lane.requests()[0], 2)
    made.submit()
    assert made.take(3 * IDLE_SECONDS_MAX) == numbers(1, 1, id=2)


@pytest.fixture
def late(made):
    """A lane that has three numbers left."""
    made.lane._next_number = NUMBER_MAX - 2
    return made


def test_after_the_last_number_a_new_producer_waits_for_all_answers(late):
    requests = late.submit(5)
    assert late.take() == numbers(NUMBER_MAX - 2, NUMBER_MAX)
    assert not late.lane.has_room
    for request in requests[:2]:
        late.answer(request, 1)
        assert late.take() == []
    late.answer(requests[2], 1)
    assert late.lane.has_room
    assert late.take() == numbers(1, 2, id=2)


def test_a_resend_keeps_the_last_numbers(late):
    requests = late.submit(4)
    assert late.take() == numbers(NUMBER_MAX - 2, NUMBER_MAX)
    late.lane.link_lost()
    assert late.take() == numbers(NUMBER_MAX - 2, NUMBER_MAX, resend=True)
    for request in requests[:3]:
        late.answer(request, 1)
    assert late.take() == numbers(1, 1, id=2)


def test_rows_of_a_divided_block_have_numbers_behind_the_last(late):
    [*_, last] = late.submit(3)
    assert late.take() == numbers(NUMBER_MAX - 2, NUMBER_MAX)
    parts = late.submit(3)
    late.lane._queue.clear()  # they take the place of another block
    late.lane.divide(last, parts)
    for request in late.lane.requests()[:2]:
        late.answer(request, 1)
    assert late.take() == numbers(NUMBER_MAX, NUMBER_MAX)
    late.answer(parts[0], 1)
    assert late.take() == numbers(1, 2, id=2)


def test_writes_that_are_lost_at_the_last_number_are_named(late):
    requests = late.submit(3)
    late.take()
    late.answer(requests[0], 7)
    late.bounce(requests[1], NUMBER_MAX - 2)
    late.bounce(requests[2], NUMBER_MAX - 2)
    assert late.lost == [[versions(7)]]
    assert late.take() == numbers(1, 2, id=2)


def test_a_block_alone_takes_no_number_behind_the_last(late):
    assert late.lane.next_if_alone(0.0) == (1, NUMBER_MAX - 2)
    late.lane._next_number = NUMBER_MAX + 1
    assert late.lane.next_if_alone(0.0) is None
    assert late.lane.next_number == (1, NUMBER_MAX)
    late.submit()
    assert late.take() == numbers(1, 1, id=2)


def test_what_is_unanswered_keeps_its_id_for_half_an_hour(made):
    made.submit()
    made.take()
    made.lane.link_lost()
    made.submit()
    assert made.take(IDLE_SECONDS_MAX) == [(1, 1, True), (1, 2, False)]


@pytest.mark.parametrize("resent_at", [None, IDLE_SECONDS_MAX - 1])
def test_what_was_sent_over_half_an_hour_ago_is_not_sent_again(made, resent_at):
    """A blocking client that was paused: the node may have forgotten it. What never left goes under a new id."""
    (request,) = made.submit()
    made.take()
    made.lane.link_lost()
    if resent_at is not None:
        assert made.take(resent_at) == [(1, 1, True)]
        made.lane.link_lost()
    made.submit()
    assert made.take(IDLE_SECONDS_MAX + 1) == [(2, 1, False)]
    assert isinstance(made.results[request], OutcomeUnknown)


def test_a_block_with_the_next_number_is_sent_as_it_is(made):
    """Also behind others that wait. One that was numbered for nothing gets another number."""
    submitted = []
    for _ in range(3):
        producer_id, producer_seq = made.lane.next_number
        (request,) = made.submit()
        request.block = BLOCK.numbered(producer_id, producer_seq)
        submitted.append(request.block)
    taken = made.lane.take(0.0)
    assert all(request.block is block for request, block in zip(taken, submitted, strict=True))
    assert made.lane.next_number == (1, 4)
    (late,) = made.submit()
    late.block = BLOCK.numbered(1, 9)
    assert made.take() == numbers(4, 4)


def test_a_client_has_a_lane_for_each_partition_of_each_feed():
    lanes = Lanes()
    lane = lanes[b"f" * 16, 3]
    assert (lane.feed_id, lane.partition) == (b"f" * 16, 3)
    assert lanes[b"f" * 16, 3] is lane
    assert lanes[b"f" * 16, 4] is not lane
    assert lanes[b"g" * 16, 3].next_number != lane.next_number, "each has a producer id of its own"


def test_a_lane_in_steady_use_is_not_idle(made):
    """Something is always under way, so the moment at which all is answered never comes; then it does."""
    (before,) = made.submit()
    made.take(0.0)
    for step in range(1, 5):
        (request,) = made.submit()
        assert made.take(step * IDLE_SECONDS_MAX) == numbers(step + 1, step + 1)
        made.answer(before, step)
        before = request
    made.answer(before, 5)
    made.submit()
    assert made.take(4.5 * IDLE_SECONDS_MAX) == numbers(6, 6)
