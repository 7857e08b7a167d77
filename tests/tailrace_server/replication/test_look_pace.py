"""Pauses between looks: short while another member is being promoted, but not for ever."""

from tailrace_server.replication.look_pace import QUICK, QUICK_MAX, LookPace


def test_a_promotion_is_looked_at_quickly():
    pace = LookPace()
    assert pace.pause("was_follower") == 1.0
    assert [pace.pause("is_promoted") for _ in range(QUICK_MAX)] == QUICK_MAX * [QUICK]


def test_a_promotion_that_hangs_is_looked_at_as_rarely_as_all_else():
    pace = LookPace()
    for _ in range(QUICK_MAX):
        pace.pause("is_promoted")
    assert [pace.pause("is_promoted") for _ in range(3)] == 3 * [1.0]
    assert pace.pause("was_follower") == 1.0
    assert pace.pause("is_promoted") == QUICK, "another promotion"
