"""Look-ups against answers that are made by hand."""

import itertools

import pytest
from tests.tailrace.requests.conversation import BRANCH, FEED, HELLO_OK, placed

from tailrace.errors import (
    NotLeader,
    UnknownFeed,
    Unreachable,
)
from tailrace.model import Level, Version
from tailrace.model.hashing import hash_keys
from tailrace.requests.look_up_parts import DIVIDED_KEYS_MIN, PART_KEYS_MAX, PARTS_UNDER_WAY
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


def in_parts(made, count, keys=None):
    keys, requests = keys or [b"%d" % number for number in range(count)], []
    requests += LookUp(FEED, Level.DISK, keys).queue(made.session, made.note("get"), made.now + 10)
    return keys, requests, made.sent()


def asked(frame):
    return Get.decode(frame.body).keys


def test_few_keys_are_asked_for_at_once(made):
    keys, _, frames = in_parts(made, DIVIDED_KEYS_MIN - 1)
    assert [asked(frame) for frame in frames] == [keys]
    made.hear(Got(items_of(frames[0])).encode(frames[0].id))
    assert [item.key for item in made.answers["get"]] == keys


@pytest.mark.parametrize("count", [DIVIDED_KEYS_MIN, 2_501, PARTS_UNDER_WAY * PART_KEYS_MAX + 1, 9_000])
@pytest.mark.parametrize("newest_first", [False, True])
def test_many_keys_are_asked_for_in_parts(made, count, newest_first):
    keys, _, frames = in_parts(made, count)
    seen = []
    assert 2 <= len(frames) <= PARTS_UNDER_WAY
    while frames:
        assert "get" not in made.answers
        assert len(frames) <= PARTS_UNDER_WAY
        frame = frames.pop(-1 if newest_first else 0)
        seen.append(asked(frame))
        made.hear(Got(items_of(frame)).encode(frame.id))
        frames += made.sent()
    assert sorted(key for part in seen for key in part) == sorted(keys)
    assert max(map(len, seen)) <= PART_KEYS_MAX
    assert max(map(len, seen)) - min(map(len, seen)) < len(seen)
    assert [item.key for item in made.answers["get"]] == [item.value for item in made.answers["get"]] == keys
    assert made.session.idle


def test_the_keys_of_a_part_have_neighbouring_hashes(made):
    _, _, frames = in_parts(made, 3_000)
    hashes = [[hash_ >> 58 for hash_ in hash_keys(asked(frame))] for frame in frames]
    for one, following in itertools.pairwise(hashes):
        assert one == sorted(one)
        assert one[-1] <= following[0]


def test_keys_are_answered_as_often_as_they_are_asked_for(made):
    keys, _, frames = in_parts(made, 0, [b"a", b"b", b"a"] * 1_000)
    for frame in frames:
        made.hear(Got(items_of(frame)).encode(frame.id))
    assert [item.key for item in made.answers["get"]] == keys


def test_a_part_whose_values_do_not_fit_into_one_answer(made):
    keys, _, frames = in_parts(made, 2_100)
    while frames:
        frame = frames.pop(0)
        made.hear(Got(items_of(frame)[:100]).encode(frame.id))
        frames += made.sent()
    assert [item.key for item in made.answers["get"]] == keys


@pytest.mark.parametrize("failed", [0, 1, 2])
def test_an_error_of_one_part_is_the_answer_to_all(made, failed):
    _, requests, frames = in_parts(made, 9_000)
    made.hear(encode_error(UnknownFeed("dropped"), frames[failed].id))
    assert isinstance(made.answers["get"], UnknownFeed)
    for frame in frames[:failed] + frames[failed + 1 :]:
        made.hear(Got(items_of(frame)).encode(frame.id))
    assert made.sent() == []
    made.session.withdraw_all(requests)
    assert made.session.idle


def test_errors_of_all_parts_are_one_answer(made):
    _, _, frames = in_parts(made, 9_000)
    made.hear(*(encode_error(UnknownFeed("dropped"), frame.id) for frame in frames))
    assert isinstance(made.answers["get"], UnknownFeed)
    assert made.session.idle


def test_a_look_up_of_a_closed_client(made):
    made.session.fail_all(Unreachable("the client was closed"))
    in_parts(made, 9_000)
    assert isinstance(made.answers["get"], Unreachable)


def test_a_look_up_that_is_withdrawn_asks_for_nothing_more(made):
    _, requests, frames = in_parts(made, 9_000)
    made.hear(Got(items_of(frames[0])).encode(frames[0].id))
    made.session.withdraw_all(requests)
    made.hear(Got(items_of(frames[1])).encode(frames[1].id))
    assert made.sent() == []
    assert made.session.idle
