"""The messages of a leader that pushes segments: in their order for each partition, parts together."""

import pytest
import trio
import trio.testing

from tailrace.errors import ProtocolError
from tailrace.model.failover import FailoverLog
from tailrace.wire.push_messages import SegmentAccept, SegmentAck, SegmentOffered, SegmentTransit
from tailrace_server.replication.pushed_partitions import PushedPartitions

LOG = FailoverLog()
PART_BYTES, FILE_BYTES = 10, 55


class Partition:
    """A partition, by its number."""

    def __init__(self, id):
        self.id = id


class Segments:
    """Notes what it is given; parts wait for ``may_go_on``."""

    def __init__(self):
        self.handled = []
        self.may_go_on = trio.Event()
        self.may_go_on.set()

    def is_receiving(self, partition):
        return False

    def may_wait(self, partition, part):
        return part.offset + len(part.data) < FILE_BYTES

    async def offered(self, partition, offer, leaders_log):
        self.handled.append((partition.id, "offer"))
        return SegmentAccept(offer.number, 0)

    async def got_parts(self, partition, parts, leaders_log):
        self.handled.append((partition.id, [part.offset for part in parts]))
        await self.may_go_on.wait()
        return SegmentAck(parts[-1].number, parts[-1].offset + len(parts[-1].data))

    def forget(self, partition):
        self.handled.append((partition.id, "forget"))

    async def settle(self, partition):
        await trio.lowlevel.checkpoint()

    def interrupt(self):
        pass


def part(offset):
    return SegmentTransit(1, 1, offset, memoryview(bytes(min(PART_BYTES, FILE_BYTES - offset))))


def offer():
    return SegmentOffered(1, 1, 1, b"p" * 16, b"s" * 16, bytes(16), (), True, b"b" * 16, 0, 9, 0, 0, FILE_BYTES, b"")


class Pushed:
    """Pushed partitions that run; what they have handled, and their answers."""

    def __init__(self, nursery):
        self.segments, self.answers, self.errors = Segments(), [], []
        self.partitions = PushedPartitions(
            self.segments,
            None,
            lambda partition, answer: self.answers.append(answer),
            nursery.start_soon,
            self.note,
        )
        self.one = Partition(1)

    async def note(self, partition, error):
        self.errors.append((partition.id, str(error)))

    async def take(self, *messages, partition=None):
        """Takes messages one after the other, and waits until nothing moves."""
        for message in messages:
            await self.partitions.take(partition or self.one, message, LOG)
        await trio.testing.wait_all_tasks_blocked()
        handled = list(self.segments.handled)
        self.segments.handled.clear()
        return handled


@pytest.fixture
async def pushed(nursery):
    return Pushed(nursery)


async def test_a_part_waits_for_the_next_one(pushed):
    assert await pushed.take(part(0)) == []
    assert await pushed.take(part(10)) == [(1, [0, 10])]
    assert await pushed.take(part(20), part(30)) == [(1, [20, 30])]
    assert [answer.offset for answer in pushed.answers] == [20, 40]


async def test_the_last_part_of_a_file_waits_for_nothing(pushed):
    assert await pushed.take(part(50)) == [(1, [50])]
    assert await pushed.take(part(40), part(50)) == [(1, [40, 50])]


async def test_parts_that_come_meanwhile_are_written_together(pushed):
    pushed.segments.may_go_on = trio.Event()
    assert await pushed.take(part(0), part(10)) == [(1, [0, 10])]
    assert await pushed.take(part(20), part(30), part(40)) == []
    pushed.segments.may_go_on.set()
    assert await pushed.take(part(50)) == [(1, [20, 30, 40, 50])]


async def test_a_part_that_waits_is_handled_before_another_offer(pushed):
    assert await pushed.take(part(0), offer()) == [(1, [0]), (1, "offer")]
    assert await pushed.take(offer(), part(0)) == [(1, "offer")]
    assert await pushed.take(part(10)) == [(1, [0, 10])]


async def test_partitions_do_not_wait_for_each_other(pushed):
    other = Partition(2)
    pushed.segments.may_go_on = trio.Event()
    assert await pushed.take(part(0), part(10)) == [(1, [0, 10])]
    assert await pushed.take(part(0), partition=other) == []
    assert await pushed.take(part(10), partition=other) == [(2, [0, 10])]
    pushed.segments.may_go_on.set()


async def test_an_end_drops_what_waits_and_returns_when_no_step_is_under_way(pushed, nursery):
    await pushed.take(part(0))
    await pushed.partitions.end(pushed.one)
    assert not pushed.partitions.is_receiving(pushed.one)
    assert pushed.segments.handled == [(1, "forget")]
    pushed.segments.handled.clear()

    pushed.segments.may_go_on = trio.Event()
    assert await pushed.take(part(0), part(10)) == [(1, [0, 10])]
    await pushed.take(part(20), part(30), part(40))
    nursery.start_soon(pushed.partitions.end, pushed.one)
    await trio.testing.wait_all_tasks_blocked()
    assert pushed.segments.handled == []
    pushed.segments.may_go_on.set()
    await trio.testing.wait_all_tasks_blocked()
    assert pushed.segments.handled == [(1, "forget")]
    assert not pushed.partitions.is_receiving(pushed.one)
    pushed.segments.handled.clear()
    assert await pushed.take(offer()) == [(1, "offer")]


async def test_an_error_of_the_leader_is_told_when_the_partition_has_dropped_its_messages(pushed):
    async def fail(partition, parts, leaders_log):
        await pushed.segments.may_go_on.wait()
        raise ProtocolError("a part that was not asked for")

    pushed.segments.may_go_on, pushed.segments.got_parts = trio.Event(), fail
    await pushed.take(part(0), part(10), part(20))
    pushed.segments.may_go_on.set()
    await trio.testing.wait_all_tasks_blocked()
    assert pushed.errors == [(1, "a part that was not asked for")]
    await pushed.partitions.end(pushed.one)
    other = Partition(2)
    assert await pushed.take(offer(), partition=other) == [(1, "forget"), (2, "offer")]
