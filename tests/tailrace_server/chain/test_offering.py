"""The leader's side: the next segment of a target, the table of its states, and the effects of answers."""

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.tailrace_server.chain.made import FOLLOWER, OTHER, id_of, made_chain, made_link, names

from tailrace_server.chain import (
    LinkedChain,
    OfferEvent,
    OfferState,
    Target,
    advance,
    compacted_link,
    next_link,
    reconnected,
)
from tailrace_server.chain.offering import _TABLE, _Effect, offered, transition

TARGET = Target(FOLLOWER)
ARROWS = [(state, event) for state, events in _TABLE.items() for event in events]


def offer(chain, target=TARGET):
    link = next_link(chain, target)
    return offered(target, link)


def test_the_oldest_segment_is_offered_first():
    chain = made_chain(10, 20, 30)
    offers, target = [], TARGET
    while (link := next_link(chain, target)) is not None:
        offers.append(link)
        target = offered(target, link)
        assert next_link(chain, target) is None, "one segment after the other"
        chain, target = advance(chain, target, target.number, OfferEvent.EXISTS)
    assert names(offers) == "abc"


def test_offers_begin_with_the_most_recent_major_segment():
    b = made_link("b", 10, 20, "a", major=True)
    a, _, c = made_chain(10, 20, 30).links
    chain = LinkedChain((a, b, c))
    assert next_link(chain, TARGET) == b
    assert names(chain.recent) == "bc"


def test_a_segment_whose_transfer_broke_is_offered_first_although_it_was_replaced():
    a, b, c = made_chain(10, 20, 30).links
    compacted = LinkedChain((compacted_link(id_of("M"), (a, b, c)),))
    assert next_link(compacted, TARGET, b) == b
    assert next_link(compacted, TARGET._replace(state=OfferState.PAUSED), b) is None
    newer = compacted.flushed(id_of("d"), c.branch, 40)
    assert next_link(newer, TARGET, b) == b


def test_a_broken_transfer_is_given_up_if_the_target_has_its_rows_or_they_are_trimmed():
    a, b, c = made_chain(10, 20, 30).links
    compacted = LinkedChain((compacted_link(id_of("M"), (a, b)), c))
    has_it = compacted.acknowledged(id_of("M"), FOLLOWER)
    assert next_link(has_it, TARGET, b) == c
    assert next_link(has_it, Target(OTHER), b) == b
    trimmed = LinkedChain((c._replace(is_major=True),))
    assert next_link(trimmed, TARGET, b) == trimmed.root


def test_a_target_that_has_all_is_offered_nothing():
    assert next_link(LinkedChain(), TARGET) is None
    chain = made_chain(10).acknowledged(id_of("a"), FOLLOWER)
    assert next_link(chain, TARGET) is None
    assert next_link(chain, Target(OTHER)) == chain.root


EFFECTS = {
    (OfferState.WAITING, OfferEvent.EXISTS): "ab",
    (OfferState.WAITING, OfferEvent.OUT_OF_ORDER): "",
    (OfferState.SENDING, OfferEvent.ACK): "ab",
    (OfferState.SENDING, OfferEvent.EXISTS): "ab",
    (OfferState.SENDING, OfferEvent.OUT_OF_ORDER): "",
}


@pytest.mark.parametrize(("state", "event"), ARROWS, ids=lambda member: member.name)
def test_an_arrow(state, event):
    """Of the segments a, b and c, the target has acknowledged a, and is offered b."""
    chain = made_chain(10, 20, 30).acknowledged(id_of("a"), FOLLOWER)
    target = Target(FOLLOWER, state, 7, id_of("b"))
    after, moved = advance(chain, target, 7, event)
    assert moved.state is transition(state, event)[0]
    assert names(link for link in after.links if FOLLOWER in link.placements) == EFFECTS.get((state, event), "a")


@given(st.lists(st.sampled_from(OfferEvent)))
def test_a_sequence_of_events_follows_the_table(events):
    state = OfferState.IDLE
    for event in events:
        if (state, event) in ARROWS:
            state, _ = transition(state, event)
        else:
            with pytest.raises(RuntimeError, match=f"state {state.name}: event {event.name}"):
                transition(state, event)


def test_each_state_and_event_is_in_the_table():
    assert set(_TABLE) == set(OfferState)
    assert {event for _, event in ARROWS} == set(OfferEvent)
    assert {effect for events in _TABLE.values() for _, effect in events.values()} == set(_Effect)


def test_an_answer_to_an_older_offer_changes_nothing():
    chain = made_chain(10, 20)
    first = offer(chain)
    chain, again = advance(chain, first, first.number, OfferEvent.FAILED)
    chain, again = advance(chain, again, again.number, OfferEvent.RETRY)
    again = offer(chain, again)
    assert again.number == first.number + 1
    assert advance(chain, again, first.number, OfferEvent.EXISTS) == (chain, again)


def test_an_answer_that_is_repeated_changes_nothing():
    chain = made_chain(10, 20)
    target = offer(chain)
    chain, target = advance(chain, target, target.number, OfferEvent.EXISTS)
    assert advance(chain, target, target.number, OfferEvent.EXISTS) == (chain, target)
    assert advance(chain, target, target.number, OfferEvent.OUT_OF_ORDER) == (chain, target)


@pytest.mark.parametrize("state", OfferState, ids=lambda state: state.name)
def test_a_target_that_has_lost_a_segment_is_offered_it_after_it_has_connected_again(state):
    chain = made_chain(10, 20, 30)
    for name in "abc":
        chain = chain.acknowledged(id_of(name), FOLLOWER)
    chain, target = reconnected(chain, Target(FOLLOWER, state, 7, id_of("c")), last_seq=10)
    assert target.state is OfferState.IDLE
    assert next_link(chain, target).id == id_of("b")
