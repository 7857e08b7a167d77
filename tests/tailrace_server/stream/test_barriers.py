import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace_server.stream.barriers import Returned, WaitingBarriers


def test_a_cookie_comes_back_at_once_where_nothing_is_outstanding():
    barriers = WaitingBarriers()
    barriers.add(b"1", [])
    barriers.add(b"2", [(1, 10, 10), (2, 0, 0)])
    assert barriers.returned() == [Returned(b"1"), Returned(b"2")]
    assert barriers.returned() == []


def test_a_cookie_waits_for_every_stream_that_was_behind():
    barriers = WaitingBarriers()
    barriers.add(b"1", [(1, 10, 5), (2, 20, 20), (3, 7, 0)])
    barriers.delivered(1, 9)
    assert barriers.returned() == []
    barriers.delivered(1, 12)
    barriers.delivered(3, 6)
    assert barriers.returned() == []
    barriers.delivered(3, 7)
    assert barriers.returned() == [Returned(b"1")]


def test_cookies_come_back_in_the_order_of_their_arrival():
    barriers = WaitingBarriers()
    barriers.add(b"1", [(1, 10, 5)])
    barriers.add(b"2", [(2, 3, 2)])
    barriers.delivered(2, 3)
    assert barriers.returned() == []
    assert len(barriers) == 2
    barriers.delivered(1, 10)
    assert barriers.returned() == [Returned(b"1"), Returned(b"2")]
    assert len(barriers) == 0


def test_a_stream_that_reached_its_own_end_covers_every_cookie():
    barriers = WaitingBarriers()
    barriers.add(b"1", [(1, 10, 5)])
    barriers.finished(1)
    assert barriers.returned() == [Returned(b"1")]


def test_a_stream_that_ended_otherwise_loses_those_that_wait_for_it():
    barriers = WaitingBarriers()
    barriers.add(b"0", [(2, 10, 5)])
    barriers.add(b"1", [(1, 10, 5), (2, 10, 5)])
    barriers.add(b"2", [(1, 10, 5), (2, 10, 5)])
    barriers.lost(1, 77)
    barriers.add(b"3", [(2, 11, 5)])
    assert barriers.returned() == []
    barriers.delivered(2, 10)
    assert barriers.returned() == [Returned(b"0"), Returned(b"1", 77), Returned(b"2", 77)]
    barriers.delivered(2, 11)
    assert barriers.returned() == [Returned(b"3")]


def test_a_cookie_after_a_lost_one_waits_on_its_own():
    barriers = WaitingBarriers()
    barriers.add(b"1", [(1, 10, 5)])
    barriers.add(b"2", [(1, 10, 5), (2, 7, 0), (3, 9, 0)])
    barriers.lost(2, 77)
    barriers.add(b"3", [(1, 10, 5), (3, 9, 0)])
    barriers.delivered(1, 10)
    assert barriers.returned() == [Returned(b"1"), Returned(b"2", 77)]
    barriers.delivered(3, 9)
    assert barriers.returned() == [Returned(b"3")]


@pytest.mark.slow
def test_many_cookies_that_wait_for_many_streams_take_little():
    """A client that takes nothing of 16,384 streams may send 4,096 cookies: they must not hold the product of these."""
    streams = [(id, 10, 0) for id in range(1_000)]
    barriers = WaitingBarriers()
    tracemalloc.start()
    try:
        for number in range(1_000):
            barriers.add(number.to_bytes(2, "big"), streams)
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()
    for id in range(1_000):
        assert barriers.returned() == []
        barriers.delivered(id, 10)
    assert len(barriers.returned()) == 1_000


steps = st.lists(
    st.tuples(st.sampled_from(["write", "deliver", "barrier", "lose", "finish"]), st.integers(0, 2), st.integers(1, 3)),
    max_size=60,
)


@given(steps)
def test_no_cookie_is_early(made):
    """Against a plain list of what each cookie needs."""
    accepted, delivered, alive = [0] * 3, [0] * 3, [True] * 3
    barriers, waiting, number = WaitingBarriers(), [], 0
    for step, stream, count in made:
        match step:
            case "write":
                accepted[stream] += count
            case "deliver" if alive[stream]:
                delivered[stream] = min(delivered[stream] + count, accepted[stream])
                barriers.delivered(stream, delivered[stream])
            case "barrier":
                number += 1
                cookie = number.to_bytes(2, "big")
                streams = [(id, accepted[id], delivered[id]) for id in range(3) if alive[id]]
                barriers.add(cookie, streams)
                waiting.append((cookie, {id: seq for id, seq, _ in streams}))
            case "lose" if alive[stream]:
                alive[stream] = False
                barriers.lost(stream, stream)
            case "finish" if alive[stream]:
                alive[stream] = False
                delivered[stream] = 1 << 60
                barriers.finished(stream)
        for cookie, lost in barriers.returned():
            expected, needed = waiting.pop(0)
            assert cookie == expected
            behind = {id for id, seq in needed.items() if delivered[id] < seq}
            if lost is None:
                assert not behind, "a cookie came back early"
            else:
                assert lost in behind
                assert not alive[lost]
    if waiting:
        _, needed = waiting[0]
        assert any(delivered[id] < seq for id, seq in needed.items()), "a cookie did not come back"


# Cookies that wait for more than what streams deliver


def test_a_cookie_that_is_held_holds_those_behind_it():
    barriers = WaitingBarriers()
    held = barriers.add(b"1", [(1, 10, 5)], held=True)
    barriers.add(b"2", [(1, 10, 5)])
    barriers.delivered(1, 10)
    assert barriers.returned() == []
    barriers.release(held)
    assert barriers.returned() == [Returned(b"1"), Returned(b"2")]


def test_a_cookie_that_was_lost_is_not_released_any_more():
    barriers = WaitingBarriers()
    first = barriers.add(b"1", [], held=True)
    second = barriers.add(b"2", [(1, 10, 5)], held=True)
    barriers.lost(1, 3)
    barriers.release(second)
    assert barriers.returned() == []
    barriers.release(first)
    assert barriers.returned() == [Returned(b"1"), Returned(b"2", 3)]


def test_all_are_lost():
    barriers = WaitingBarriers()
    barriers.add(b"1", [(1, 10, 5)])
    barriers.add(b"2", [], held=True)
    barriers.lose_all(0)
    assert barriers.returned() == [Returned(b"1", 0), Returned(b"2", 0)]
    barriers.add(b"3", [(1, 10, 5)])
    barriers.delivered(1, 10)
    assert barriers.returned() == [Returned(b"3")]


def test_a_cookie_for_which_nobody_was_asked_yet_is_lost_with_a_stream():
    """It was open when the cookie came: what it lacked then nobody has delivered."""
    barriers = WaitingBarriers()
    first = barriers.add(b"1", (), held=True)
    barriers.expect(first, [1])
    barriers.release(first)
    second = barriers.add(b"2", (), held=True)
    barriers.expect(second, [1, 2])
    barriers.settle(first, [(1, 10, 10)])
    assert barriers.returned() == [Returned(b"1")]
    barriers.lost(2, 5)
    assert barriers.returned() == [Returned(b"2", 5)]


@settings(max_examples=examples(500))
@example(
    [("write", 1, 1), ("barrier", 0, 1), ("lose", 0, 1), ("barrier", 0, 1), ("lose", 1, 1)] + [("answer", 0, 1)] * 2
)
@example([("barrier", 0, 1), ("barrier", 0, 1), ("lose", 0, 1), ("open", 0, 1), ("write", 0, 1), ("barrier", 0, 1)])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["write", "deliver", "barrier", "answer", "lose", "finish", "open"]),
            st.integers(0, 2),
            st.integers(1, 3),
        ),
        max_size=60,
    )
)
def test_no_cookie_is_early_where_somebody_else_knows_how_far(made):
    """As `FollowerBarriers`: one question at a time, and those that come meanwhile share the next.

    A stream that is opened again has another number.
    """
    accepted, delivered = [0] * 3, dict.fromkeys(range(3), 0)
    alive = {0: 0, 1: 1, 2: 2}  # the stream of each partition
    barriers, needed, returned = WaitingBarriers(), [], 0
    asked, group = None, None  # (barrier, what the answer will say), the first that no question covers yet

    def ask():
        nonlocal asked, group
        barrier, group = group, None
        if barrier is not None and barrier.lost_partition is None:
            barriers.release(barrier)
            asked = barrier, list(accepted)

    def answer():
        nonlocal asked
        barrier, seqs = asked
        asked = None
        barriers.settle(barrier, [(id, seqs[partition], delivered[id]) for partition, id in alive.items()])
        ask()

    def check():
        nonlocal returned
        for cookie, lost in barriers.returned():
            assert int.from_bytes(cookie, "big") == returned
            behind = [id for id, seq in needed[returned].items() if delivered[id] < seq]
            returned += 1
            assert lost is not None or not behind, "a cookie came back early"

    for step, partition, count in made:
        id = alive.get(partition)
        match step:
            case "write":
                accepted[partition] += count
            case "deliver" if id is not None:
                delivered[id] = min(delivered[id] + count, accepted[partition])
                barriers.delivered(id, delivered[id])
            case "barrier":
                cookie = len(needed).to_bytes(2, "big")
                needed.append({id: accepted[partition] for partition, id in alive.items()})
                if group is not None and group.lost_partition is None:
                    barriers.add(cookie, ())
                    barriers.expect(group, alive.values())
                else:
                    group = barriers.add(cookie, (), held=True)
                    barriers.expect(group, alive.values())
                    if asked is None:
                        ask()
            case "answer" if asked is not None:
                answer()
            case "lose" if id is not None:
                del alive[partition]
                barriers.lost(id, partition)
            case "finish" if id is not None:
                del alive[partition]
                delivered[id] = 1 << 60
                barriers.finished(id)
            case "open" if id is None:
                id = alive[partition] = partition + 3 * len(delivered)
                delivered[id] = 0
        check()
    while asked is not None:
        answer()
    for partition, id in alive.items():
        delivered[id] = max(delivered[id], accepted[partition])
        barriers.delivered(id, delivered[id])
    check()
    assert returned == len(needed), "a cookie did not come back"
