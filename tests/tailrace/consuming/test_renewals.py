"""The order and the times in which the checkpoints of a plan are renewed."""

from __future__ import annotations

import pytest

from tailrace.consuming.renewals import RENEWALS, Renewals, RenewedCheckpoint
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.segment_messages import SegmentFetch

KEPT_S = 60.0
CHECKPOINTS = tuple(RenewedCheckpoint(bytes([n]) * 16, bytes([n + 10]) * 16, KEPT_S) for n in range(3))


def asked(renewals, now, id):
    """The checkpoint that is asked for; None without a request."""
    requests = renewals.request(now, lambda: id)
    if not requests:
        return None
    (frame,) = FrameDecoder().receive_data(*requests)
    assert frame.id == id
    fetch = SegmentFetch.decode(frame.body)
    (found,) = (one for one in CHECKPOINTS if one.id == fetch.checkpoint_id)
    assert (fetch.segment_id, fetch.offset, fetch.nbytes) == (found.segment_id, 0, 1)
    return found


def round_of(renewals, now):
    """The checkpoints of one round at ``now``, each with its answer."""
    found = []
    while (one := asked(renewals, now, len(found) + 1)) is not None:
        assert asked(renewals, now, 99) is None, "one at a time"
        assert renewals.takes(len(found) + 1, is_kept=True)
        found.append(one)
    return tuple(found)


def test_each_checkpoint_is_renewed_several_times_within_its_time():
    renewals = Renewals(CHECKPOINTS)
    times = [now / 10 for now in range(int(20 * KEPT_S))]
    rounds = [(now, found) for now in times if (found := round_of(renewals, now))]
    assert {found for _, found in rounds} == {CHECKPOINTS}
    assert [now for now, _ in rounds] == [number * KEPT_S / RENEWALS for number in range(len(rounds))]


def test_a_checkpoint_that_is_gone_is_not_asked_for_again():
    renewals = Renewals(CHECKPOINTS)
    assert asked(renewals, 0.0, 1) == CHECKPOINTS[0]
    assert renewals.takes(1, is_kept=False)
    assert round_of(renewals, 0.0) == CHECKPOINTS[1:]
    assert round_of(renewals, KEPT_S) == CHECKPOINTS[1:]


@pytest.mark.parametrize("count", [0, 1])
def test_without_a_checkpoint_there_is_nothing_to_do(count):
    renewals = Renewals(CHECKPOINTS[:count])
    for one in CHECKPOINTS[:count]:
        assert asked(renewals, 0.0, 1) == one
        assert renewals.takes(1, is_kept=False)
    assert asked(renewals, 1_000.0, 1) is None


def test_a_connection_that_breaks_has_its_checkpoint_asked_for_again():
    renewals = Renewals(CHECKPOINTS)
    assert asked(renewals, 0.0, 7) == CHECKPOINTS[0]
    renewals.connection_made()
    assert not renewals.takes(7, is_kept=True)
    assert round_of(renewals, 0.0) == CHECKPOINTS


def test_answers_to_others_are_left_to_them():
    renewals = Renewals(CHECKPOINTS)
    assert not renewals.takes(1, is_kept=True)
    renewals.request(0.0, lambda: 1)
    assert not renewals.takes(2, is_kept=False)
