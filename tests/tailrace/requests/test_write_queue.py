"""Rows that leave together, one case each. ``test_write_queue_model`` tries what happens at random."""

import itertools

import pytest

from tailrace.block import Block, encode_block
from tailrace.errors import Forbidden, OutcomeUnknown, Overloaded, ProtocolError, TailraceError, Unreachable
from tailrace.model import Level, VersionRange
from tailrace.model.hashing import key_hash
from tailrace.requests.lane import UNANSWERED_MAX, Lane, WriteRequest, WriteState
from tailrace.requests.write_queue import (
    BUNDLE_BYTES_MAX,
    BUNDLE_ROWS_MAX,
    CROWDED_BLOCKS,
    DOUBTED_TURNS,
    RowWrite,
    WriteQueue,
)
from tailrace.wire.failures import OutOfOrder


def versions(first, last):
    return VersionRange(0, b"u" * 16, first, last)


class Made:
    """A queue with one lane, and the answers by key."""

    def __init__(self):
        ids = itertools.count(1)
        self.lane = Lane(b"f" * 16, 0, lambda: next(ids))
        self.queue = WriteQueue()
        self.answers = {}

    def note(self, key):
        def done(found, error):
            assert key not in self.answers, "answered twice"
            self.answers[key] = found or error

        return done

    def put(self, *keys, value=b"v", level=Level.DISK, deadline=30.0):
        rows = [RowWrite(self.lane, key, value, key_hash(key), level, self.note(key), deadline) for key in keys]
        for row in rows:
            self.queue.add_row(row)
        return rows

    def write(self, key):
        block = encode_block([key], [b"v"], partition=0)
        self.queue.add(WriteRequest(self.lane, block, Level.DISK, self.note(key), 30.0, 0, None))

    def send(self, now=0.0):
        """The requests that are sent now, and the keys of each."""
        taken = self.queue.take(now)
        return taken, [Block.parse(request.block.tobytes()).columns().keys() for request in taken]


@pytest.fixture
def made():
    return Made()


def test_rows_of_one_turn_are_one_block_and_each_gets_its_own_version(made):
    made.put(b"a", b"b", b"c")
    (request,), keys = made.send()
    assert keys == [[b"a", b"b", b"c"]]
    made.queue.answered(request, versions(7, 9))
    assert made.answers == {b"a": versions(7, 7), b"b": versions(8, 8), b"c": versions(9, 9)}
    assert made.queue.is_idle


def test_a_row_alone_is_the_block_that_it_always_was(made):
    made.put(b"a")
    (request,), _ = made.send()
    block = encode_block([b"a"], [b"v"], partition=0, producer_id=1, producer_seq=1)
    assert request.block == block


def test_puts_and_deletions_share_a_block_and_levels_do_not(made):
    made.put(b"a", level=None)
    made.put(b"b", value=None, level=None)
    made.put(b"c", b"d", level=Level.MEMORY)
    taken, keys = made.send()
    assert keys == [[b"a", b"b"], [b"c", b"d"]]
    assert [request.level for request in taken] == [None, Level.MEMORY]
    assert taken[0].block.columns().values() == [b"v", None]


def test_a_block_leaves_behind_the_rows_that_were_put_before_it(made):
    made.put(b"a", b"b")
    made.write(b"block")
    made.put(b"c")
    assert made.send()[1] == [[b"a", b"b"], [b"block"], [b"c"]]


def test_the_rows_and_bytes_of_a_bundle_are_bounded(made):
    made.put(*(b"%d" % number for number in range(BUNDLE_ROWS_MAX + 2)))
    made.put(b"large", value=bytes(BUNDLE_BYTES_MAX))
    made.put(b"behind")
    taken, _ = made.send()
    assert [request.block.rows for request in taken] == [BUNDLE_ROWS_MAX, 3, 1]


def test_rows_wait_together_while_their_lane_is_full(made):
    for number in range(UNANSWERED_MAX):
        made.put(b"%d" % number)
        assert len(made.send()[0]) == 1
    made.put(b"a")
    made.put(b"b")
    assert made.send()[0] == []
    assert made.queue.is_holding
    made.queue.answered(made.lane.first, versions(1, 1))
    assert made.send()[1] == [[b"a", b"b"]]


def test_rows_leave_after_a_row_whose_outcome_is_unknown(made):
    """The lane is empty then, and takes a new producer id with its next block: nothing else would send that."""
    made.put(b"a")
    (request,), _ = made.send()
    made.queue.refused(request, OutcomeUnknown("the fsync has failed"), 0.0, in_doubt=False)
    made.put(b"b", b"c")
    (request,), keys = made.send()
    assert keys == [[b"b", b"c"]]
    assert request.block.header.producer_id == 2
    assert not made.queue.is_holding


def test_rows_leave_after_a_row_that_was_withdrawn_before_it_got_a_new_producer_id(made):
    row, behind = made.put(b"a") + made.put(b"behind", level=Level.MEMORY)
    first, second = made.send()[0]
    made.queue.answered(first, versions(1, 1))
    made.queue.refused(second, OutOfOrder("out of order", expected=1), 0.0, in_doubt=False)
    made.queue.withdraw(behind)
    made.put(b"b")
    assert made.send(1.0)[1] == [[b"b"]]
    assert row.state is WriteState.DONE


def test_rows_that_are_refused_for_now_go_again_together(made):
    made.put(b"a", b"b")
    (request,), _ = made.send()
    made.queue.refused(request, Overloaded("busy"), 1.0, in_doubt=False)
    made.put(b"c", b"d")
    assert made.send(0.5)[0] == []
    assert made.send(1.0)[1] == [[b"a", b"b"]]
    assert made.send(1.0)[1] == [[b"c", b"d"]]


def test_a_bundle_that_is_refused_for_good_is_sent_row_by_row(made):
    made.put(b"a", b"bad", b"c")
    (request,), _ = made.send()
    made.queue.refused(request, Forbidden("bad"), 0.0, in_doubt=False)
    assert made.answers == {}
    taken, keys = made.send()
    assert keys == [[b"a"], [b"bad"], [b"c"]]
    assert [request.block.header.producer_seq for request in taken] == [1, 2, 3]
    made.queue.answered(taken[0], versions(1, 1))
    made.queue.refused(taken[1], Forbidden("bad"), 0.0, in_doubt=False)
    assert isinstance(made.answers[b"bad"], Forbidden)


def test_rows_of_a_divided_bundle_stay_before_later_rows(made):
    made.put(b"a", b"bad")
    (first,), _ = made.send()
    made.put(b"c", b"d")
    (second,), _ = made.send()
    made.put(b"e")
    made.queue.refused(first, Forbidden("bad"), 0.0, in_doubt=False)
    assert made.send()[0] == [], "the second is on its way, and bounces"
    made.queue.refused(second, OutOfOrder("", expected=1), 0.0, in_doubt=False)
    taken, keys = made.send()
    assert keys == [[b"a"], [b"bad"], [b"c", b"d"]]
    assert [request.block.header.producer_seq for request in taken] == [1, 2, 3]
    assert made.send()[1] == [[b"e"]]


def test_a_large_bundle_is_divided_within_the_bound_of_unanswered_blocks(made):
    before = [b"%d" % number for number in range(2 * UNANSWERED_MAX)]
    made.put(*before)
    (bundle,), _ = made.send()
    made.put(b"y", b"z")
    (later,), _ = made.send()
    made.queue.refused(bundle, Forbidden("bad"), 0.0, in_doubt=False)
    made.queue.refused(later, OutOfOrder("", expected=1), 0.0, in_doubt=False)
    found = []
    while True:
        found += made.send()[1]
        waiting = made.lane.requests()
        if not waiting:
            break
        assert waiting[0].state is WriteState.SENT
        assert sum(request.state is WriteState.SENT for request in waiting) <= UNANSWERED_MAX
        made.queue.answered(waiting[0], versions(1, waiting[0].block.rows))
    assert found == [*([key] for key in before), [b"y", b"z"]]


def test_a_bundle_in_doubt_that_is_refused_for_good_is_not_written_row_by_row(made):
    made.put(b"a", b"b")
    made.send()
    made.queue.link_lost()
    (request,), _ = made.send()
    assert request.resend
    made.queue.refused(request, Forbidden("revoked"), 0.0, in_doubt=False)
    assert [type(answer) for answer in made.answers.values()] == [Forbidden, Forbidden]
    assert made.answers[b"a"] is not made.answers[b"b"], "each caller raises its own"
    assert made.send()[0] == []
    assert made.queue.is_idle


def test_a_bundle_whose_result_the_node_has_forgotten_is_not_written_again(made):
    made.put(b"a", b"b")
    (request,), _ = made.send()
    made.queue.refused(request, OutOfOrder("", expected=40), 0.0, in_doubt=False)
    assert [type(answer) for answer in made.answers.values()] == [OutcomeUnknown, OutcomeUnknown]
    assert made.send()[0] == []


def test_a_row_whose_caller_is_gone_leaves_its_bundle(made):
    a, b, c = made.put(b"a", b"b", b"c")
    made.queue.withdraw(b)
    _, keys = made.send()
    assert keys == [[b"a", b"c"]]
    made.queue.withdraw(c)
    made.queue.link_lost()
    _, keys = made.send()
    assert keys == [[b"a"]]
    made.queue.withdraw(a)
    made.queue.link_lost()
    assert made.send()[0] == []
    assert made.queue.is_idle
    assert made.answers == {}


@pytest.mark.parametrize(("first", "last"), [(5, 5), (4, 5)])
def test_a_resend_with_fewer_rows_is_answered_with_what_was_written_before_or_now(made, first, last):
    """The node has written the block of both rows, and tells that; or that without the first, if it had not."""
    a, _ = made.put(b"a", b"b")
    made.send()
    made.queue.withdraw(a)
    made.queue.link_lost()
    (request,), keys = made.send()
    assert keys == [[b"b"]]
    made.queue.answered(request, versions(first, last))
    assert made.answers == {b"b": versions(5, 5)}


@pytest.mark.parametrize(
    "wrong", [versions(1, 3), versions(1, 1), versions(0, 0), versions(2, 1), VersionRange(1, b"u" * 16, 1, 2)]
)
def test_an_answer_that_does_not_fit_a_bundle_breaks_the_protocol(made, wrong):
    made.put(b"a", b"b")
    (request,), _ = made.send()
    with pytest.raises(ProtocolError, match="the answer to a WRITE to partition 0 is"):
        made.queue.answered(request, wrong)


def test_each_row_has_its_own_deadline(made):
    made.put(b"a", deadline=10.0)
    made.put(b"b", deadline=20.0)
    (request,), _ = made.send()
    made.put(b"c", deadline=15.0)
    made.queue.expire(16.0, None)
    assert {key: answer.outcome for key, answer in made.answers.items()} == {b"a": "unknown", b"c": "not sent"}
    made.queue.answered(request, versions(1, 2))
    assert made.answers[b"b"] == versions(2, 2)


def test_a_bundle_whose_callers_are_gone_ends_with_its_time(made):
    """Otherwise 16 of them would keep their lane for ever, if the node does not answer."""
    for row in made.put(b"a", b"b", deadline=10.0):
        made.send()
        made.queue.withdraw(row)
    assert not made.queue.is_idle
    made.queue.expire(10.0, None)
    assert made.queue.is_idle
    assert made.answers == {}


def test_the_last_row_that_expires_ends_its_bundle(made):
    made.put(b"a", b"b", deadline=10.0)
    made.send()
    made.queue.expire(10.0, None)
    assert [type(answer) for answer in made.answers.values()] == [Unreachable, Unreachable]
    assert made.queue.is_idle


def test_all_rows_are_told_when_the_client_closes(made):
    made.put(b"a", b"b")
    made.send()
    made.put(b"c")
    made.queue.fail_all(TailraceError("closed"))
    assert {key: str(answer) for key, answer in made.answers.items()} == dict.fromkeys([b"a", b"b", b"c"], "closed")
    assert made.queue.is_idle


def test_rows_are_gathered_after_answers_that_came_together(made):
    made.put(b"a", b"b")
    assert not made.queue.gathers, "no one is about to put another one"
    (request,), _ = made.send()
    made.queue.answered(request, versions(1, 2))
    made.put(b"c")
    assert made.queue.gathers, "the caller of the other row may put one, too"
    made.put(b"d")
    assert not made.queue.gathers
    (request,), _ = made.send()
    made.queue.answered(request, versions(3, 4))
    made.put(b"e")
    made.queue.expect_none()
    assert not made.queue.gathers, "the turn of the loop has ended"


def test_one_caller_after_the_other_does_not_gather(made):
    for seq in range(1, 4):
        made.put(b"%d" % seq)
        assert not made.queue.gathers
        (request,), _ = made.send()
        made.queue.answered(request, versions(seq, seq))


def test_what_waits_is_moved_by_a_pause_of_the_program(made):
    made.put(b"a", b"b", deadline=10.0)
    made.send()
    made.put(b"c", deadline=10.0)
    made.queue.postpone(5.0)
    made.queue.expire(14.0, None)
    assert made.answers == {}


def test_rows_are_gathered_while_many_blocks_have_no_answer(made):
    for number in range(CROWDED_BLOCKS):
        made.put(b"%d" % number)
        assert not made.queue.gathers, "few wait, and each row leaves at once"
        made.send()
    made.put(b"a")
    assert made.queue.gathers
    made.put(b"b")
    made.queue.expect_none()
    assert not made.queue.gathers
    assert made.send()[1] == [[b"a", b"b"]]


def test_rows_of_callers_that_put_together_again_leave_as_one_block(made):
    made.put(b"a", b"b")
    made.send()
    made.queue.expect_none()
    made.put(b"c")
    assert made.queue.gathers, "new callers may put further rows in this turn, as before"
    made.put(b"d")
    assert made.queue.gathers
    assert made.send()[1] == [[b"c", b"d"]]


def test_a_row_that_has_waited_for_others_in_vain_is_the_last_to_wait(made):
    made.put(b"a", b"b")
    made.send()
    made.queue.expect_none()
    made.put(b"c")
    assert made.queue.gathers
    made.send()
    made.put(b"d")
    assert not made.queue.gathers


def test_the_last_of_the_callers_that_were_answered_waits_for_no_one(made):
    made.put(b"a", b"b")
    (request,), _ = made.send()
    made.queue.answered(request, versions(1, 2))
    made.put(b"c")
    assert made.queue.gathers
    made.put(b"d")
    assert not made.queue.gathers, "rows left together before, but the callers are known"


class Loop:
    """Turns of a shell's loop: tasks put rows, and the queue is asked after each whether the rows wait for more."""

    def __init__(self, made):
        self.made = made
        self.seq = 0
        self.unanswered = []

    def turn(self, rows):
        """The rows of each block that leaves in this turn, and whether the last one left without a wait for its end."""
        sizes = []
        for _ in range(rows):
            self.seq += 1
            self.made.put(b"%d" % self.seq)
            if not self.made.queue.gathers:
                sizes += self._sent()
        has_waited = self.made.queue.is_holding
        if has_waited:
            self.made.queue.expect_none()
            sizes += self._sent()
        return sizes, not has_waited

    def _sent(self):
        taken, keys = self.made.send()
        self.unanswered += zip(taken, map(len, keys), strict=True)
        return list(map(len, keys))

    def answer(self):
        """All blocks are answered by one read."""
        self.made.queue.expect_none()
        answered, self.unanswered = self.unanswered, []
        for request, rows in answered:
            self.made.queue.answered(request, versions(self.seq, self.seq + rows - 1))


@pytest.mark.parametrize("rows", [[8, 9], [9, 7, 8, 10], [3, 12]])
def test_rows_of_a_schedule_leave_as_one_block_however_many_were_answered_before(made, rows):
    """Who puts them does not wait for the answers: as a server that puts a row for each request."""
    loop = Loop(made)
    blocks = []
    for number in range(40):
        blocks.append(len(loop.turn(rows[number % len(rows)])[0]))
        loop.answer()
    assert sum(blocks[5:]) <= 37, "one block for nearly each turn"


def test_callers_that_put_row_after_row_soon_leave_with_the_last_one_again(made):
    loop = Loop(made)
    loop.turn(8)
    loop.answer()
    assert loop.turn(8) == ([8], True)
    loop.answer()
    assert loop.turn(9)[0] == [8, 1], "one more came"
    loop.answer()
    turns = []
    for _ in range(DOUBTED_TURNS + 1):
        turns.append(loop.turn(9))
        loop.answer()
    # The row that was alone has left before, so that the first turn waits for no further row.
    assert turns == [([9], True), *[([9], False)] * (DOUBTED_TURNS - 1), ([9], True)]
    loop.turn(5)
    loop.answer()
    assert loop.turn(5) == ([5], False), "four did not come"
