"""Finding the node to ask: a model of nodes that lead, follow, die and point at each other, and time by command."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.errors import NotLeader, Unreachable
from tailrace.link.address import Address
from tailrace.link.backoff import FIRST_SECONDS, RECONNECT_GROWTH, SECONDS_MAX
from tailrace.link.finder import (
    GREETED_ROUNDS_MAX,
    HINTS_MAX,
    LOOK_SECONDS,
    LOOK_TICK_SECONDS,
    LOOK_WAITING_SECONDS,
    STEADY_SECONDS,
    TRY_SECONDS_MAX,
    Finder,
    check_state,
)
from tailrace.wire.messages import HelloOk

CLUSTER = "c0" * 16


def address(number):
    return Address(f"node-{number}", 4700)


def hello(role="follower", term=1, leader="", cluster=CLUSTER):
    return HelloOk(1, "0" * 32, cluster, "", 1000, 10.0, (), role=role, term=term, leader=leader)


def make(count=3, state="leader"):
    """A finder whose pauses are the longest there are, and its clock."""
    now = [0.0]
    return Finder(tuple(map(address, range(count))), state, lambda: now[0], lambda: 1.0), now


def greet(finder, **fields):
    """A node says hello where the last try has led; what the finder says to it."""
    try:
        finder.check(hello(**fields))
    except (NotLeader, Unreachable) as error:
        finder.failed(error)
        return error
    return None


def dead(finder):
    finder.failed(Unreachable("refused"))


def cut(finder):
    """A connection that was of use breaks."""
    finder.failed(Unreachable("cut"), progressed=True)


# Cases


def test_a_leader_is_taken():
    finder, _ = make()
    assert finder.next_try() == (address(0), 0.0)
    assert greet(finder, role="leader") is None


def test_one_that_follows_names_its_leader_which_is_asked_at_once():
    finder, _ = make()
    finder.next_try()
    error = greet(finder, leader="elsewhere:4711")
    assert isinstance(error, NotLeader)
    assert error.leader == "elsewhere:4711"
    assert finder.next_try() == (Address("elsewhere", 4711), 0.0)


def test_through_websocket_only_hints_of_the_url_are_followed():
    """Nodes name their addresses of frames, where no WebSocket can be opened."""
    finder = Finder(tuple(map(address, range(3))), "leader", lambda: 0.0, lambda: 1.0, tunnel="/tailrace")
    finder.next_try()
    greet(finder, leader="elsewhere:4711")
    assert finder.next_try() == (address(1), 0.0)
    other = finder.another()
    other.next_try()
    greet(other, leader="elsewhere:4711")
    other.next_try()
    greet(other, leader=str(address(2)))
    assert other.next_try() == (address(2), 0.0)


@pytest.mark.parametrize("hint", ["", ":::", "node-1:port", "a b"])
def test_a_hint_that_is_no_address(hint):
    finder, _ = make()
    finder.next_try()
    greet(finder, leader=hint)
    assert finder.next_try() == (address(1), 0.0)


def test_two_that_point_at_each_other_are_asked_once_a_round():
    finder, _ = make(2)
    pauses = []
    for _ in range(4):
        where, pause = finder.next_try()
        pauses.append(pause)
        greet(finder, leader=str(address(1 - int(where.host[-1]))))
    assert pauses == [0.0, 0.0, FIRST_SECONDS, 0.0]


def test_a_chain_of_hints_without_an_end_is_followed_for_a_while_in_each_round():
    finder, _ = make(1)
    pauses = []
    for number in range(3 * (HINTS_MAX + 1)):
        pauses.append(finder.next_try()[1])
        greet(finder, leader=f"elsewhere-{number}:4700")
    whole = [0.0] * HINTS_MAX
    assert pauses == [0.0, *whole, FIRST_SECONDS, *whole, RECONNECT_GROWTH * FIRST_SECONDS, *whole]


def test_a_single_node_is_tried_again_after_longer_and_longer_pauses():
    finder, _ = make(1)
    pauses = []
    for _ in range(10):
        pauses.append(finder.next_try()[1])
        dead(finder)
    assert pauses == [0.0, *(min(FIRST_SECONDS * RECONNECT_GROWTH**tries, SECONDS_MAX) for tries in range(9))]


def test_pauses_begin_anew_after_a_connection_that_was_of_use():
    grown = FIRST_SECONDS * RECONNECT_GROWTH**3
    for lasted_s, pauses in ((STEADY_SECONDS, [0.0, FIRST_SECONDS]), (STEADY_SECONDS / 2, [0.0, grown])):
        finder, now = make(1)
        for _ in range(3):
            finder.next_try()
            dead(finder)
        finder.next_try()
        assert greet(finder, role="leader") is None
        now[0] += lasted_s
        finder.failed(NotLeader("stepped down", leader="elsewhere:4700"))
        assert [finder.next_try()[1], (dead(finder), finder.next_try()[1])[1]] == pauses


def test_a_leader_that_hands_over_soon_after_it_was_found_names_the_next_one_which_is_asked_at_once():
    """The pauses grew with each handover before, up to 2 s, and the hint was not followed."""
    finder, _ = make(3)
    assert finder.next_try() == (address(0), 0.0)
    for number in range(20):
        assert greet(finder, role="leader", term=number + 1) is None
        target = address((number + 1) % 2)
        finder.failed(NotLeader("it has handed over", leader=str(target)), progressed=True)
        assert finder.next_try() == (target, 0.0)


def test_leaders_that_refuse_all_requests_are_asked_ever_less_often():
    finder, _ = make(2)
    pauses = []
    for number in range(8):
        where, pause = finder.next_try()
        pauses.append(pause)
        assert greet(finder, role="leader", term=number + 1) is None
        other = address(1 - int(where == address(1)))
        finder.failed(NotLeader("it does not lead", leader=str(other)))
    assert max(pauses) == FIRST_SECONDS * RECONNECT_GROWTH**2


@pytest.mark.parametrize("error", [Unreachable("closed"), ConnectionResetError()])
@pytest.mark.parametrize("count", [1, 3])
def test_a_connection_that_breaks_is_made_anew_at_once(count, error):
    finder, _ = make(count)
    for _ in range(50):
        while True:
            where, pause = finder.next_try()
            assert pause <= FIRST_SECONDS
            if where == address(count - 1):
                break
            assert greet(finder, leader=str(address(count - 1))) is not None
        assert greet(finder, role="leader") is None
        finder.failed(error, progressed=True)


@pytest.mark.parametrize("count", [1, 3])
def test_a_node_that_says_hello_and_hangs_up_is_asked_ever_less_often(count):
    """As long as nothing came of the connections: then one that breaks is made anew at once."""
    finder, now = make(count)
    pauses = []
    while len(pauses) < 12:
        where, pause = finder.next_try()
        now[0] += pause
        if where == address(0):
            pauses.append(pause)
            assert greet(finder, role="leader") is None
        dead(finder)
    longest = FIRST_SECONDS * RECONNECT_GROWTH**GREETED_ROUNDS_MAX
    assert now[0] >= sum(min(FIRST_SECONDS * RECONNECT_GROWTH**tries, longest) for tries in range(11))
    assert now[0] <= 2 * 12 * longest, "it is not given up"
    while finder.next_try()[0] != address(0):
        dead(finder)
    assert greet(finder, role="leader") is None
    finder.failed(Unreachable("cut"), progressed=True)
    assert finder.next_try()[1] == FIRST_SECONDS


def test_what_broke_comes_first_and_at_the_second_time_after_those_that_answer():
    finder, now = make(3)
    finder.next_try()
    dead(finder)
    finder.next_try()
    assert greet(finder, role="leader") is None
    dead(finder)
    assert finder.next_try() == (address(1), FIRST_SECONDS)
    assert greet(finder, role="leader") is None
    cut(finder)
    order = []
    for _ in range(3):
        order.append(finder.next_try())
        if order[-1][0] != address(1):
            dead(finder)
        else:
            assert greet(finder, role="leader") is None
            now[0] += STEADY_SECONDS
            dead(finder)
    assert order == [(address(2), FIRST_SECONDS), (address(1), 0.0), (address(1), FIRST_SECONDS)]


def test_where_the_greeting_never_comes_pauses_grow():
    finder, _ = make(1)
    finder.next_try()
    assert greet(finder, role="leader") is None
    dead(finder)
    pauses = [(finder.next_try()[1], dead(finder))[0] for _ in range(4)]
    assert pauses == [FIRST_SECONDS * RECONNECT_GROWTH**number for number in range(4)]


def test_one_that_does_not_answer_is_tried_last():
    finder, _ = make(3)
    finder.next_try()
    dead(finder)
    for _ in range(2):
        finder.next_try()
        greet(finder)
    assert [finder.next_try()[0], (greet(finder), finder.next_try()[0])[1]] == [address(1), address(2)]
    greet(finder)
    assert finder.next_try() == (address(0), 0.0)


def test_one_that_answers_again_has_its_place_again():
    finder, _ = make(2)
    order = []
    for number in range(6):
        order.append(finder.next_try()[0])
        if number == 0:
            dead(finder)
        else:
            greet(finder)
    assert order == [address(0), address(1), address(1), address(0), address(0), address(1)]


def test_a_leader_of_an_older_term_is_none():
    finder, _ = make(2)
    finder.next_try()
    greet(finder, role="leader", term=5)
    dead(finder)
    finder.next_try()
    dead(finder)
    finder.next_try()
    error = greet(finder, role="leader", term=4)
    assert isinstance(error, NotLeader)
    assert "term 4, and another led in term 5" in str(error)
    finder.next_try()
    assert greet(finder, role="leader", term=5) is None


@pytest.mark.parametrize("hint", ["", "node-1:4700", "node-0:4700"])
def test_a_term_that_was_only_promised_keeps_no_leader_out(hint):
    """Nothing came of a promotion; the leader that stayed leads in a lower term than one member has promised."""
    finder, _ = make(2)
    finder.next_try()
    greet(finder, term=5, leader=hint)
    assert finder.next_try()[0] == address(1)
    assert greet(finder, role="leader", term=4) is None


def test_terms_of_another_cluster_do_not_count():
    """A single node was made anew."""
    finder, _ = make(1)
    finder.next_try()
    greet(finder, role="leader", term=5)
    finder.failed(Unreachable("cut"))
    finder.next_try()
    assert greet(finder, role="leader", term=1, cluster="d0" * 16) is None


def test_a_leader_of_another_cluster_gets_no_requests():
    """The URL names one by mistake, and the nodes of the client's own cluster are away for a while."""
    finder, _ = make(2)
    finder.next_try()
    assert greet(finder, role="leader", term=5) is None
    cut(finder)
    for again in (finder, finder.another()):
        error = greet(again, role="leader", term=9, cluster="d0" * 16)
        assert isinstance(error, NotLeader)
        assert f"leads cluster {'d0' * 16}, and this client has begun with cluster {CLUSTER}" in str(error)
    assert greet(finder, role="leader", term=5) is None


@pytest.mark.parametrize("state", ["follower", "any"])
def test_who_asked_for_no_leader_may_find_a_node_before_it_has_joined(state):
    finder, _ = make(2, state=state)
    finder.next_try()
    assert greet(finder, term=5) is None
    cut(finder)
    assert greet(finder, term=0, cluster="d0" * 16) is None


def test_what_an_older_term_says_of_its_leader_is_not_followed():
    finder, _ = make(3)
    finder.next_try()
    greet(finder, role="leader", term=5)
    finder.failed(NotLeader("stepped down", leader="node-1:4700"))
    finder.next_try()
    greet(finder, term=4, leader="node-9:4700")
    assert finder.next_try()[0] == address(2)


def test_a_leader_outside_of_the_url_is_found_again():
    finder, now = make(1)
    finder.next_try()
    greet(finder, leader="node-7:4700")
    finder.next_try()
    assert greet(finder, role="leader") is None
    now[0] += 60
    dead(finder)
    assert finder.next_try() == (address(7), FIRST_SECONDS)
    for _ in range(2):
        dead(finder)
        assert finder.next_try()[0] == address(0)
    dead(finder)
    assert finder.next_try() == (address(7), 0.0)


def test_another_connection_begins_where_this_one_was_led():
    finder, _ = make(3)
    finder.next_try()
    greet(finder, leader="node-2:4700", term=5)
    finder.next_try()
    greet(finder, role="leader", term=5)
    other = finder.another()
    assert other.next_try() == (address(2), 0.0)
    assert isinstance(greet(other, role="leader", term=4), NotLeader)


@pytest.mark.parametrize(
    ("state", "role", "taken"),
    [("leader", "follower", False), ("follower", "leader", False), ("follower", "follower", True)]
    + [("any", role, True) for role in ("leader", "follower")],
)
def test_what_is_taken(state, role, taken):
    finder, _ = make(state=state)
    finder.next_try()
    assert (greet(finder, role=role, leader="node-9:4700") is None) is taken
    if not taken and state == "follower":
        assert finder.next_try()[0] == address(1), "a leader's word for who leads leads to no follower"


def test_states_that_there_are():
    check_state("follower")
    with pytest.raises(ValueError, match="none of 'leader', 'follower', 'any'"):
        check_state("primary")


def test_a_try_is_bounded_where_there_are_others():
    assert make(1)[0].try_seconds(10.0) == 10.0
    assert make(2)[0].try_seconds(10.0) == TRY_SECONDS_MAX
    assert make(5)[0].try_seconds(10.0) == 2.0
    finder, _ = make(1)
    finder.next_try()
    greet(finder, leader="elsewhere:4700")
    finder.next_try()
    assert finder.try_seconds(10.0) == TRY_SECONDS_MAX
    assert finder.try_seconds(1.0) == 1.0


# Looks at the others


def served(count=3, term=4, number=0):
    """A finder whose node leads in ``term``."""
    finder, now = make(count)
    while finder.next_try()[0] != address(number):
        dead(finder)
    assert greet(finder, role="leader", term=term) is None
    return finder, now


def looks(finder, waits=False):
    """Whom it wants to look at now, all at once."""
    found = []
    while (where := finder.next_look(waits)) is not None:
        found.append(where)
        assert len(found) < 10, "looks are bounded"
    return found


def test_the_others_are_looked_at_once_and_then_rarely():
    finder, now = served()
    assert looks(finder) == [address(1), address(2)]
    now[0] += LOOK_SECONDS - 1
    assert looks(finder) == []
    now[0] += 1
    assert looks(finder) == [address(1), address(2)]


def test_while_something_waits_one_is_looked_at_every_few_seconds():
    finder, now = served()
    looks(finder)
    assert looks(finder, waits=True) == []
    found = []
    for _ in range(4):
        now[0] += LOOK_WAITING_SECONDS
        found += looks(finder, waits=True)
    assert found == [address(1), address(2), address(1), address(2)]


def test_the_connections_of_a_client_look_together():
    finder, _ = served()
    other = finder.another()
    other.next_try()
    assert greet(other, role="leader", term=4) is None
    assert looks(finder) == [address(1), address(2)]
    assert looks(other) == []
    finder.seen(address(1), hello("leader", 5))
    assert other.superseded().leader == str(address(1))


@pytest.mark.parametrize("state", ["follower", "any"])
def test_who_asked_for_no_leader_looks_at_nobody(state):
    finder, _ = make(state=state)
    finder.next_try()
    assert greet(finder) is None
    assert not finder.looks
    assert looks(finder, waits=True) == []


def test_nobody_is_looked_at_without_a_connection_or_without_others():
    assert looks(make(3)[0]) == []
    assert looks(served(1)[0], waits=True) == []
    finder, _ = served()
    dead(finder)
    assert looks(finder, waits=True) == []


@pytest.mark.parametrize(
    ("peer", "leaves"),
    [
        (hello("leader", 5), True),
        (hello("leader", 4), False),
        (hello("leader", 3), False),
        (hello("follower", 5), False),
        (hello("follower", 9, leader="node-2:4700"), False),
        (hello("leader", 5, cluster="d0" * 16), False),
    ],
)
def test_only_a_leader_of_a_later_term_is_a_reason_to_leave(peer, leaves):
    finder, _ = served()
    finder.seen(address(1), peer)
    error = finder.superseded()
    assert (error is not None) is leaves
    if leaves:
        finder.failed(error)
        assert finder.superseded() is None
        assert finder.next_try() == (address(1), 0.0)
        finder.failed(Unreachable("gone"))
        while finder.next_try()[0] != address(0):
            dead(finder)
        assert isinstance(greet(finder, role="leader", term=4), NotLeader), "it is not gone back to"


def test_whom_a_node_of_a_later_term_follows_is_looked_at_next():
    finder, _ = served()
    looks(finder)
    finder.seen(address(1), hello("follower", 5, leader="elsewhere:4700"))
    assert looks(finder) == [Address("elsewhere", 4700)]
    finder.seen(Address("elsewhere", 4700), hello("follower", 5, leader="node-8:4700"))
    assert looks(finder) == []
    finder.seen(Address("elsewhere", 4700), hello("leader", 5))
    assert finder.superseded().leader == "elsewhere:4700"


def test_nodes_that_name_each_other_are_not_looked_at_in_circles():
    """Both have promised a later term, and each takes the other for the leader."""
    finder, _ = served()
    looked = []
    while (where := finder.next_look(waits=False)) is not None:
        looked.append(where)
        assert len(looked) <= 4, "each of the others, and whom it names"
        other = address(2) if where == address(1) else address(1)
        finder.seen(where, hello("follower", 5, leader=str(other)))
    assert finder.superseded() is None


# The model


@dataclass
class Node:
    alive: bool
    role: str
    term: int
    hint: int | None
    refuses: bool = False  # takes a connection as a leader, and refuses what is asked
    promised: int = 0  # so many terms above those that it has seen

    @property
    def hello(self):
        """What it says of itself: a follower the term that it has promised, of which nothing may come."""
        if self.role == "leader":
            return {"role": self.role, "term": self.term}
        leader = "" if self.hint is None else str(address(self.hint))
        return {"role": self.role, "term": self.term + self.promised, "leader": leader}


NODES = 5
TERM_MAX = 4
HINTS = st.one_of(st.none(), st.integers(0, NODES - 1))
nodes = st.builds(
    Node,
    st.booleans(),
    st.sampled_from(["leader", "follower"]),
    st.integers(1, TERM_MAX),
    HINTS,
    refuses=st.booleans(),
    promised=st.sampled_from([0, 0, 1, 3 * TERM_MAX]),
)
worlds = st.lists(nodes, min_size=NODES, max_size=NODES)
TRY_SECONDS = 3.0


class Run:
    """A client that looks for the leader and is refused, cut off or served, as each world has it."""

    def __init__(self, count):
        self.count = count
        self.finder, self.now = make(count)
        self.tries_in_a_row = 0

    def step(self, world, lasts_s=0.0):
        """One try; where it was served, for ``lasts_s``. The number of the node that serves, or None."""
        where, pause = self.finder.next_try()
        self.now[0] += pause
        self.tries_in_a_row = 1 if pause else self.tries_in_a_row + 1
        assert self.tries_in_a_row <= self.count + HINTS_MAX + 1, "a round ends"
        number = int(where.host[-1])
        node = world[number]
        if not node.alive:
            self.now[0] += TRY_SECONDS
            dead(self.finder)
            return None
        if greet(self.finder, **node.hello) is not None:
            return None
        if node.refuses:
            hint = None if node.hint is None else str(address(node.hint))
            self.finder.failed(NotLeader("stepped down", leader=hint))
            return None
        if lasts_s:
            self.now[0] += lasts_s
            self.finder.failed(Unreachable("cut"))
            if lasts_s >= STEADY_SECONDS:
                self.tries_in_a_row = 0
        return number


def settled(world, leader):
    """``leader`` leads in the highest term that a node leads in, though others may have promised higher ones.

    The others do nothing but say so, or what they believed before.
    """
    term = 1 + TERM_MAX
    for number, node in enumerate(world):
        if number == leader:
            world[number] = Node(True, "leader", term, None)
        elif node.role == "leader":
            node.refuses = True  # it is not followed, and finds that out when it is asked
    return world


@given(
    st.integers(1, NODES),
    st.lists(st.tuples(worlds, st.sampled_from([0.0, 0.5, STEADY_SECONDS, 60.0])), max_size=30),
    worlds,
    st.integers(0, NODES - 1),
    st.data(),
)
def test_the_leader_is_found_in_bounded_time(count, past, world, leader, data):
    run = Run(count)
    for then, lasts_s in past:
        run.step(then, lasts_s)
    world = settled(world, leader)
    if leader >= count:  # the URL does not name it: somebody has to
        pointing = data.draw(st.integers(0, count - 1))
        world[pointing] = Node(True, "follower", world[leader].term, leader)
    began, tries = run.now[0], 0
    while run.step(world) != leader:
        tries += 1
        assert tries <= 2 * (count + HINTS_MAX + 1), "what is left of this round, and one whole round"
    assert run.now[0] - began <= SECONDS_MAX + (tries + 1) * TRY_SECONDS


@given(st.integers(1, NODES), st.lists(worlds, min_size=1, max_size=20))
@example(
    2,
    [
        [Node(True, "leader", 1, 1, refuses=True), Node(True, "leader", 1, 0, refuses=True)]
        + [Node(False, "", 1, None)] * 3
    ],
)
def test_a_search_that_finds_nothing_does_not_spin(count, past):
    """Whatever nodes say, so many tries take so much time: after the first rounds, 2 s for each."""
    run = Run(count)
    for number in range(200):
        world = past[number % len(past)]
        for node in world:
            node.refuses = True
        run.step(world)
    rounds = 200 / (count + HINTS_MAX + 1)
    assert run.now[0] >= (rounds - 9) * SECONDS_MAX


@given(
    worlds,
    st.integers(2, NODES),
    st.integers(0, NODES - 1),
    st.integers(0, NODES - 1),
    st.booleans(),
    st.data(),
)
def test_a_client_of_a_leader_that_was_cut_off_finds_the_later_one(world, count, old, new, waits, data):
    """And looks at nobody more often than it is allowed to."""
    old %= count
    if new == old:
        new = (old + 1) % NODES
    finder, now = served(count, term=TERM_MAX, number=old)
    world = settled(world, new)
    if new >= count:  # one of the URL has to know of it
        pointing = data.draw(st.integers(0, count - 1).filter(lambda number: number != old))
        world[pointing] = Node(True, "follower", 1 + TERM_MAX, new)
    looked = 0
    while (error := finder.superseded()) is None:
        where = finder.next_look(waits)
        if where is None:
            now[0] += LOOK_TICK_SECONDS
            assert now[0] <= 2 * LOOK_SECONDS + TRY_SECONDS * NODES
            continue
        looked += 1
        node = world[int(where.host[-1])]
        if node.alive:
            finder.seen(where, hello(**node.hello))
    assert error.leader == str(address(new))
    assert looked <= 2 * count
    finder.failed(error)
    assert finder.next_try() == (address(new), 0.0)
    assert greet(finder, role="leader", term=1 + TERM_MAX) is None
