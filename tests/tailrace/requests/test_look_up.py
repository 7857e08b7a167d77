"""Look-ups against answers that are made by hand."""

import pytest
from tests.tailrace.requests.conversation import BRANCH, HELLO_OK, placed

from tailrace.errors import (
    NotLeader,
    UnknownFeed,
)
from tailrace.model import Version
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
