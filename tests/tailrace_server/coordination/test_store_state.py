"""The states of a coordinator."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tailrace_server.coordination.store_state import EFFECTS, StoreEvent, StoreHealth, StoreState, transition


def health(now, told):
    return StoreHealth(lambda: now[0], told.append, slow_after_s=1.0)


def test_each_state_says_what_goes_on_what_waits_and_what_to_do():
    assert set(EFFECTS) == set(StoreState)
    assert all(effect.goes_on and effect.waits and effect.to_do for effect in EFFECTS.values())


def test_each_state_can_be_reached_and_left_for_connected():
    reached = {StoreState.CONNECTING}
    while more := {transition(state, event) for state in reached for event in StoreEvent} - reached:
        reached |= more
    assert reached == set(StoreState)
    for state in set(StoreState) - {StoreState.CONNECTED}:
        assert any(transition(state, event) is StoreState.CONNECTED for event in StoreEvent)


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], StoreState.CONNECTING),
        ([StoreEvent.ANSWERED], StoreState.CONNECTED),
        ([StoreEvent.NO_ANSWER, StoreEvent.ANSWERED], StoreState.CONNECTED),
        ([StoreEvent.ANSWERED, StoreEvent.WENT_BACK, StoreEvent.ANSWERED], StoreState.RESTORED),
        ([StoreEvent.ANSWERED, StoreEvent.WENT_BACK, StoreEvent.LEASE_ENDED], StoreState.RESTORED),
        ([StoreEvent.WENT_BACK, StoreEvent.REGISTERED], StoreState.CONNECTED),
        ([StoreEvent.ANSWERED, StoreEvent.LEASE_ENDED, StoreEvent.ANSWERED], StoreState.LEASE_LOST),
        ([StoreEvent.ANSWERED, StoreEvent.COMPACTED, StoreEvent.ANSWERED], StoreState.COMPACTED),
        ([StoreEvent.READ_ONLY, StoreEvent.ANSWERED], StoreState.READ_ONLY),
        ([StoreEvent.REFUSED, StoreEvent.LEASE_ENDED], StoreState.REFUSED),
    ],
)
def test_events_lead_to_a_state(events, state):
    now = StoreState.CONNECTING
    for event in events:
        now = transition(now, event)
    assert now is state


@given(st.lists(st.sampled_from(StoreEvent)))
def test_a_state_without_an_answer_lasts_until_there_is_one(events):
    state = StoreState.UNREACHABLE
    for event in events:
        before, state = state, transition(state, event)
        if before is StoreState.UNREACHABLE and state in (StoreState.CONNECTED, StoreState.SLOW):
            assert event in (StoreEvent.ANSWERED, StoreEvent.ANSWERED_LATE)


def test_health_logs_each_change_of_state_once_and_counts_events():
    now, told = [10.0], []
    found = health(now, told)
    found.note(StoreEvent.NO_ANSWER, "a: refused")
    now[0] = 15.0
    found.note(StoreEvent.NO_ANSWER, "a: timed out")
    assert told == ["the cluster store is unreachable: a: refused"]
    json = found.to_json()
    assert (json["state"], json["why"], json["since_s"]) == ("unreachable", "a: timed out", 5.0)
    assert json["counts"]["no answer"] == 2
    found.answered("http://a", 0.1)
    assert found.to_json()["why"] == ""
    found.answered("http://a", 1.5)
    assert found.state is StoreState.SLOW
    assert "http://a answered after 1.5 s" in told[-1]


def test_a_lost_lease_is_told_with_how_slow_etcd_is_and_what_helps():
    """The state stays for as long as etcd answers too slowly for a lease."""
    found = health([10.0], [])
    found.answered("http://a", 1.6)
    found.note(StoreEvent.LEASE_ENDED, "not renewed for 4 s")
    found.answered("http://a", 1.7)
    json = found.to_json()
    assert (json["state"], json["why"]) == ("lease_lost", "not renewed for 4 s; http://a answered after 1.6 s")
    assert "a faster disk or less load" in json["to_do"]


def test_the_last_bad_state_is_told_after_its_end():
    now, told = [10.0], []
    found = health(now, told)
    found.answered("http://a", 0.1)
    assert found.to_json()["last_trouble"] is None
    found.note(StoreEvent.LEASE_ENDED, "it was revoked")
    now[0] = 10.5
    found.note(StoreEvent.REGISTERED, "")
    now[0] = 70.0
    assert found.state is StoreState.CONNECTED
    assert found.to_json()["last_trouble"] == {
        "state": "lease_lost",
        "why": "it was revoked",
        "lasted_s": 0.5,
        "ago_s": 59.5,
    }
