"""When the news of connections leaves: to clients in the turn, to other nodes once for all turns of a pass."""

import logging
import threading

import pytest
import trio
from tests.tailrace_server.upkeep.test_committer import FakeClock, FakeJournal

from tailrace.wire.frames import encode_frame
from tailrace.wire.opcodes import Opcode
from tailrace_server.config import Limits
from tailrace_server.host.line_limit import INTERVAL_SECONDS, LINES_FREE
from tailrace_server.runtime.workers import ThreadWorkers
from tailrace_server.serving.connections import LATER_SECONDS, Connections
from tailrace_server.upkeep.committer import INLINE_BYTES_MAX, Committer


class Peer:
    """A connection that notes when it is asked to send."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def flush(self):
        self.log.append(self.name)


class Made:
    """Connections over a committer, with one replica, one client and one node that is followed."""

    def __init__(self):
        self.log = []
        clock = FakeClock()
        self.journal = FakeJournal(clock)
        self.committer = Committer(self.journal, clock, ThreadWorkers())
        self.connections = Connections(self.committer, Limits())
        self.committer.on_sync = self.connections.flush_replicas
        self.committer.on_progress = self.connections.flush_clients
        self.replica, self.client, self.leader = (Peer(name, self.log) for name in ("replica", "client", "leader"))

    def write(self, asker, size=10):
        """A write of one turn, that is answered once it is durable."""
        self.journal.write(size)
        self.connections.has_replica_news(self.replica)
        self.committer.when_durable(lambda error: self.durable())
        self.connections.turn_ended(asker)

    def durable(self):
        self.log.append(f"fsync {self.journal.syncs}")
        self.connections.has_news(self.client)


@pytest.fixture
async def made(nursery):
    made = Made()
    nursery.start_soon(made.committer.run)
    nursery.start_soon(made.connections.run)
    await trio.testing.wait_all_tasks_blocked()
    return made


async def test_strangers_have_few_lines_in_the_log(running, raw, caplog):
    caplog.set_level(logging.INFO, "tailrace.server")
    for _ in range(LINES_FREE + 5):
        async with raw() as connection:
            await connection.send(encode_frame(Opcode.STATUS, b"{}", 1))
            assert await connection.error()
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "STATUS before HELLO" in line]) == LINES_FREE
    running.node.connections._strangers.tell(trio.current_time() + INTERVAL_SECONDS)
    assert caplog.records[-1].getMessage() == "127.0.0.1: 5 more connections ended before HELLO"


async def settled(made):
    while made.journal.synced < made.journal.written:
        await trio.lowlevel.checkpoint()
    await trio.testing.wait_all_tasks_blocked()


async def test_a_block_leaves_to_a_replica_before_the_fsync_of_the_leader(made):
    made.write("alone")
    assert made.log == ["replica", "fsync 1", "client"]
    await settled(made)
    assert made.log == ["replica", "fsync 1", "client"]


async def test_the_writes_of_a_pass_leave_to_a_replica_together(made):
    made.write("first")
    made.log.clear()
    for asker in ("a", "b", "c"):
        made.write(asker)
    assert made.log == []
    await settled(made)
    assert made.log == ["replica", *3 * ["fsync 2"], "client"]


async def test_news_for_a_replica_without_an_fsync_leaves_in_the_next_pass(made):
    made.connections.has_replica_news(made.replica)
    made.connections.turn_ended("a")
    assert made.log == []
    await settled(made)
    assert made.log == ["replica"]


async def test_news_for_a_replica_leaves_during_an_fsync(made):
    made.journal.gate = threading.Event()
    made.write("a", INLINE_BYTES_MAX + 1)
    while not made.journal.threads:
        await trio.lowlevel.checkpoint()
    assert made.log == ["replica"]
    made.write("b")
    await trio.testing.wait_all_tasks_blocked()
    assert made.log == ["replica", "replica"]
    made.journal.gate.set()
    await settled(made)
    assert made.log == ["replica", "replica", "fsync 1", "client", "fsync 2", "client"]


async def test_news_that_may_wait_leaves_with_the_next_rows(made, autojump_clock):
    made.connections.has_later_replica_news(made.replica)
    made.connections.turn_ended("a")
    await settled(made)
    assert made.log == []
    made.connections.has_replica_news(made.replica)
    await settled(made)
    assert made.log == ["replica"]
    await trio.sleep(2 * LATER_SECONDS)
    assert made.log == ["replica"]


async def test_news_that_may_wait_leaves_soon_without_rows(made, autojump_clock):
    other = Peer("other", made.log)
    for _ in range(2):
        made.connections.has_later_replica_news(made.replica)
        made.connections.has_later_replica_news(other)
        made.connections.has_replica_news(other)
        await settled(made)
        assert made.log == ["other"]
        await trio.sleep(LATER_SECONDS)
        await settled(made)
        assert made.log == ["other", "replica"]
        made.log.clear()


async def test_news_that_may_wait_leaves_by_its_own_time(made, autojump_clock):
    """While rows come all the time, a message of its own would cost each node as much as a put."""
    for _ in range(4):
        made.connections.has_later_replica_news(made.replica)
        await trio.sleep(0.75 * LATER_SECONDS)
        assert made.log == []
        made.connections.has_replica_news(made.replica)
        await settled(made)
        assert made.log == ["replica"]
        made.log.clear()
    made.connections.has_later_replica_news(made.replica)
    await trio.sleep(1.1 * LATER_SECONDS)
    assert made.log == ["replica"]


async def test_the_acknowledgements_of_a_turn_leave_together(made):
    for _ in range(3):
        made.connections.has_acknowledgements(made.leader)
    assert made.log == []
    made.connections.turn_ended("puller")
    assert made.log == ["leader"]
    await settled(made)
    assert made.log == ["leader"]


async def test_acknowledgements_outside_of_a_turn_leave_in_the_next_pass(made):
    made.connections.has_acknowledgements(made.leader)
    await settled(made)
    assert made.log == ["leader"]


@pytest.mark.parametrize(("connections", "of_clients"), [(1, 1), (4, 3), (32, 24), (256, 192), (4_096, 4_032)])
def test_clients_leave_few_connections_of_a_low_bound(connections, of_clients):
    assert Limits(connections_max=connections).client_connections_max == of_clients
