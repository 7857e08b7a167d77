"""Finding the node to ask: a model of nodes that lead, follow, die and point at each other, and time by command."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.address import Address
from tailrace.backoff import FIRST_SECONDS, SECONDS_MAX
from tailrace.errors import NotLeader, Unreachable
from tailrace.finding import HINTS_MAX, STEADY_SECONDS, TRY_SECONDS_MAX, Finder, check_state
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
    assert pauses == [0.0, *whole, FIRST_SECONDS, *whole, 2 * FIRST_SECONDS, *whole]


def test_a_single_node_is_tried_again_after_longer_and_longer_pauses():
    finder, _ = make(1)
    pauses = []
    for _ in range(10):
        pauses.append(finder.next_try()[1])
        dead(finder)
    assert pauses == [0.0, *(min(FIRST_SECONDS * 2**tries, SECONDS_MAX) for tries in range(9))]


def test_pauses_begin_anew_after_a_connection_that_was_of_use():
    for lasted_s, pause in ((STEADY_SECONDS, FIRST_SECONDS), (STEADY_SECONDS / 2, 8 * FIRST_SECONDS)):
        finder, now = make(1)
        for _ in range(3):
            finder.next_try()
            dead(finder)
        finder.next_try()
        assert greet(finder, role="leader") is None
        now[0] += lasted_s
        dead(finder)
        assert finder.next_try() == (address(0), pause)


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
    greet(finder, term=5)
    finder.next_try()
    error = greet(finder, role="leader", term=4)
    assert isinstance(error, NotLeader)
    assert "term 4, and there was a term 5" in str(error)
    finder.next_try()
    assert greet(finder, role="leader", term=5) is None


def test_terms_of_another_cluster_do_not_count():
    finder, _ = make(2)
    finder.next_try()
    greet(finder, term=5)
    finder.next_try()
    assert greet(finder, role="leader", term=1, cluster="d0" * 16) is None


def test_what_an_older_term_says_of_its_leader_is_not_followed():
    finder, _ = make(3)
    finder.next_try()
    greet(finder, term=5)
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
    assert finder.next_try() == (address(0), 0.0)
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


# The model


@dataclass
class Node:
    alive: bool
    role: str
    term: int
    hint: int | None
    refuses: bool = False  # takes a connection as a leader, and refuses what is asked


NODES = 5
TERM_MAX = 4
HINTS = st.one_of(st.none(), st.integers(0, NODES - 1))
nodes = st.builds(
    Node, st.booleans(), st.sampled_from(["leader", "follower"]), st.integers(1, TERM_MAX), HINTS, refuses=st.booleans()
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
        leader = "" if node.hint is None or node.role == "leader" else str(address(node.hint))
        if greet(self.finder, role=node.role, term=node.term, leader=leader) is not None:
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
    """``leader`` leads in the highest term, and nobody else does anything but say so, or what it believed before."""
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
