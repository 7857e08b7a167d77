"""The ends of streams: what the consumer does next, by the reason."""

import pytest
from tests.tailrace.consuming.test_session import LOG_V, ends_the_connection, stored, talk

from tailrace.consuming.stream_ends import FINAL
from tailrace.errors import DataGone
from tailrace.model import EndReason
from tailrace.model.position import Position
from tailrace.wire.stream_messages import StreamEnd


@pytest.mark.parametrize("reason", EndReason)
def test_every_end_but_the_final_ones_is_followed_by_a_request(reason):
    made = talk()
    made.stream_end(reason)
    if reason in FINAL:
        with pytest.raises(FINAL[reason], match="because"):
            made.events()
        assert made.session.failure is not None
        return
    if reason is EndReason.WRONG_STATE:
        ends_the_connection(made)
        return
    assert made.events() == []
    if reason is EndReason.END_REACHED:
        assert made.session.finished
        assert made.session.next_retry is None
        return
    first_id = made.id()
    assert made.sent() == [], "not at once"
    (status,) = made.session.status().partitions
    assert (status.state, status.reason, status.last_end) == ("waiting", f"{reason.value}: because", reason)
    assert status.next_retry == made.session.next_retry > made.now
    made.now = made.session.next_retry
    assert made.sent() == ["STREAM_REQUEST"]
    assert made.id() != first_id


@pytest.mark.parametrize("reason", [EndReason.BEHIND, EndReason.NOT_MY_PARTITION])
@pytest.mark.parametrize("has_others", [False, True])
def test_a_node_that_lacks_what_is_asked_for_is_left_where_there_are_others(has_others, reason):
    made = talk(stored({0: Position.at(LOG_V, 7)}), log=LOG_V)
    made.session._streams.has_others = has_others
    for _ in range(2):
        made.stream_end(reason)
        assert made.events() == []
        made.now = made.session.next_retry
        assert made.sent() == ["STREAM_REQUEST"]
    made.stream_end(reason)
    if has_others:
        ends_the_connection(made)
    else:
        assert made.events() == []
    assert made.requests[0][1].seq == 7, "nobody goes back for such a node"


def test_what_is_gone_names_its_partition():
    made = talk(high_seqs=(0, 0, 0))
    made.hear(StreamEnd(2, EndReason.TRIMMED, "because", 1, first_seq=8).encode(made.id(2)))
    [error] = made.events()
    assert isinstance(error, DataGone)
    assert (str(error), error.partition, error.first_seq) == ("partition 2: because", 2, 8)
    assert made.session.failure is None
    (*_, status) = made.session.status().partitions
    assert (status.state, status.last_end) == ("ended", EndReason.TRIMMED)
    assert made.id(0) != made.id(1), "the others have their streams"
