"""Look-ups against answers that are made by hand."""

import pytest
from tests.tailrace.requests.conversation import BRANCH, FEED, HELLO_OK, placed

from tailrace.errors import (
    NotLeader,
    UnknownFeed,
)
from tailrace.model import Level, Version
from tailrace.requests.look_up import PART_KEYS_MAX
from tailrace.requests.plan import LookUp
from tailrace.wire.messages import Get, Got, encode_error


def test_a_get_whose_values_do_not_fit_into_one_answer(made):
    keys = [b"a", b"b", b"c"]
    made.get("get", keys)
    for answered in (2, 1):
        (frame,) = made.sent()
        asked = Get.decode(frame.body).keys
        assert asked == keys[-len(asked) :]
        made.hear(Got([(Version(0, BRANCH, 1), 5, key) for key in asked[:answered]]).encode(frame.id))
    assert [item.key for item in made.answers["get"]] == [item.value for item in made.answers["get"]] == keys


def test_a_get_that_fails_half_way(made):
    made.get("get", [b"a", b"b"])
    (frame,) = made.sent()
    made.hear(Got([None]).encode(frame.id))
    (frame,) = made.sent()
    made.hear(encode_error(UnknownFeed("dropped"), frame.id))
    assert isinstance(made.answers["get"], UnknownFeed)
    assert made.session.idle


@pytest.mark.parametrize(
    ("state", "role", "asked"),
    [("leader", "leader", 0), ("follower", "follower", 1), ("any", "leader", 0), ("any", "follower", 1)],
)
def test_look_ups_say_what_the_node_has_to_be(state, role, asked):
    made = placed(state, role)
    made.get("a", [b"k"])
    [frame] = made.sent()
    assert Get.decode(frame.body).state == asked


@pytest.mark.parametrize(("state", "role"), [("follower", "follower"), ("any", "follower"), ("any", "leader")])
def test_a_read_leaves_a_node_that_has_changed_its_role(state, role):
    made = placed(state, role)
    made.get("a", [b"k"])
    [frame] = made.sent()
    with pytest.raises(NotLeader):
        made.hear(encode_error(NotLeader("it has another role"), frame.id))


def test_a_read_of_any_node_asks_for_the_role_that_the_same_node_has_now():
    made = placed("any", "leader")
    made.get("a", [b"k"])
    [frame] = made.sent()
    with pytest.raises(NotLeader):
        made.hear(encode_error(NotLeader("it does not lead"), frame.id))
    made.session.connection_lost(NotLeader("it does not lead"))
    made.session.connection_made()
    made.now += 1
    made.sent()
    made.hear(HELLO_OK._replace(role="follower").encode())
    [frame] = made.sent()
    assert Get.decode(frame.body).state == 1


def items_of(frame):
    return [(Version(0, BRANCH, 1), 5, key) for key in Get.decode(frame.body).keys]


def test_many_keys_are_asked_for_in_parts(made):
    keys = [b"%d" % number for number in range(2 * PART_KEYS_MAX + 1)]
    made.get("get", keys)
    sizes = []
    while made.answers.get("get") is None:
        (frame,) = made.sent()
        sizes.append(len(Get.decode(frame.body).keys))
        made.hear(Got(items_of(frame)).encode(frame.id))
    assert sizes == [PART_KEYS_MAX, PART_KEYS_MAX, 1]
    assert [item.key for item in made.answers["get"]] == [item.value for item in made.answers["get"]] == keys


def halves(made, count):
    keys, requests = [b"%d" % number for number in range(count)], []
    requests += LookUp(FEED, Level.DISK, keys).queue(made.session, made.note("get"), made.now + 10)
    return keys, requests, made.sent()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_look_up_of_many_keys_has_two_requests_under_way(made, order):
    keys, _, frames = halves(made, 2_001)
    assert [len(Get.decode(frame.body).keys) for frame in frames] == [1_001, 1_000]
    for number in order:
        assert "get" not in made.answers
        made.hear(Got(items_of(frames[number])).encode(frames[number].id))
    assert [item.key for item in made.answers["get"]] == keys
    assert made.session.idle


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_error_of_one_half_is_the_answer_to_both(made, order):
    _, requests, frames = halves(made, 1_024)
    first, second = (frames[number] for number in order)
    made.hear(encode_error(UnknownFeed("dropped"), first.id))
    assert isinstance(made.answers["get"], UnknownFeed)
    made.hear(Got(items_of(second)).encode(second.id))
    made.session.withdraw_all(requests)
    assert made.session.idle


def test_errors_of_both_halves_are_one_answer(made):
    _, _, frames = halves(made, 1_024)
    made.hear(*(encode_error(UnknownFeed("dropped"), frame.id) for frame in frames))
    assert isinstance(made.answers["get"], UnknownFeed)
    assert made.session.idle


def test_a_look_up_that_is_withdrawn_asks_for_nothing_more(made):
    _, requests, frames = halves(made, 6_000)
    made.session.withdraw_all(requests)
    made.hear(Got(items_of(frames[0])).encode(frames[0].id))
    assert made.sent() == []
    assert made.session.idle
