"""The pauses after which a replica asks again for partitions that have failed."""

import pytest
from tests.tailrace.consuming.test_replica import begun
from tests.tailrace.consuming.test_session import LOG_U

from tailrace.consuming.replica_retries import RETRIES_PER_SECOND
from tailrace.model import EndReason
from tailrace.model.position import Position
from tailrace.wire.stream_messages import StreamEnd


def test_the_pause_grows_with_each_failure_until_a_snapshot_ends():
    made = begun()
    pauses = []
    for _ in range(5):
        made.hear(StreamEnd(0, EndReason.ERROR, "damaged").encode(made.id()))
        made.events()
        made.streams.resume(0, Position.at(LOG_U, 0))
        pauses.append(made.session.next_retry - made.now)
        made.now += 60
        made.sent()
        made.agree(0)
        made.events()
    assert all(after > before for before, after in zip(pauses[::2], pauses[2::2], strict=False))
    made.start(0, 9)
    made.block(1, 9)
    made.end(9)
    made.hear(StreamEnd(0, EndReason.ERROR, "damaged").encode(made.id()))
    made.events()
    made.streams.resume(0, Position.at(LOG_U, 9))
    assert made.session.next_retry - made.now < pauses[2]


@pytest.mark.slow
def test_partitions_that_go_on_failing_are_not_asked_for_more_often_the_more_there_are():
    count, seconds, steps = 500, 15, 10
    made = begun(partitions=range(count))
    fails = dict.fromkeys(range(count))
    asked = 0
    for step in range(2 * seconds * steps):
        for partition in fails:
            made.hear(StreamEnd(partition, EndReason.ERROR, "damaged").encode(made.id(partition)))
        for event in made.events():
            made.streams.resume(event.partition, Position.at(LOG_U, 0))
        made.now += 1 / steps
        before = {partition: id for partition, (id, _) in made.requests.items()}
        made.sent()
        fails = [partition for partition, (id, _) in made.requests.items() if id != before[partition]]
        if step >= seconds * steps:  # the first failures are tried again soon
            asked += len(fails)
    assert RETRIES_PER_SECOND / 2 <= asked / seconds <= 2 * RETRIES_PER_SECOND
