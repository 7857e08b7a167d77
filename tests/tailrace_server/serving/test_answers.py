"""The answers of a connection: those that pass the queue against those that wait in it."""

from __future__ import annotations

import collections
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fake_host import FakeClock
from tests.tailrace_server.raw_requests import KEY, block_of, write

from tailrace.errors import NotDurable
from tailrace.model import Level, VersionRange
from tailrace.wire.frames import encode_frame
from tailrace.wire.messages import Written
from tailrace.wire.opcodes import Opcode
from tailrace_server.host.turn import Turn
from tailrace_server.serving.answers import Answers
from tailrace_server.serving.connection import Connection
from tailrace_server.state.traffic import Traffic

FAILURE = NotDurable("an fsync has failed")


class Peer:
    """Has answers of a connection, and a committer that syncs when it is told."""

    def __init__(self, *, passes):
        self.waiting = collections.deque()
        clock = FakeClock()
        node = SimpleNamespace(
            clock=clock,
            turn=Turn(clock),
            traffic=Traffic(),
            storage=SimpleNamespace(committer=SimpleNamespace(when_durable=self.waiting.append)),
        )
        self.passes = passes
        self.passed = 0
        self.sent, self.told = [], []
        self.answers = Answers(node, lambda: None, self.pass_by)
        self.traffic = node.traffic

    def pass_by(self, data):
        if not (self.passes and self.answers.may_pass):
            return False
        self.sent.append(data)
        self.passed += 1
        return True

    def do(self, event, id):
        answers = self.answers
        match event:
            case "written" | "written alone":
                versions = VersionRange(3, b"b" * 16, id + 1, id + 1)
                answers.add_written(versions, id, is_alone=event == "written alone")
            case "another":
                answers.add(encode_frame(Opcode.RESULT, b"{}", id))
            case "watch":
                answers.watch(id + 1, self.told.append)
            case "fsync" | "failed fsync":
                while self.waiting:
                    self.waiting.popleft()(None if event == "fsync" else FAILURE)
            case "flush":
                self.sent.append(answers.take())
            case "close":
                answers.close()


EVENTS = ["written", "written alone", "written alone", "another", "watch", "fsync", "failed fsync", "flush", "close"]


@given(st.lists(st.sampled_from(EVENTS), max_size=20))
def test_the_same_is_sent_in_the_same_order_whether_answers_pass_the_queue_or_not(events):
    passing, queueing = Peer(passes=True), Peer(passes=False)
    for peer in (passing, queueing):
        for id, event in enumerate([*events, "fsync", "flush"]):
            peer.do(event, id)
        assert peer.answers.held_bytes == 0
    assert b"".join(passing.sent) == b"".join(queueing.sent)
    assert passing.told == queueing.told
    disks = [peer.traffic.write_durations[Level.DISK].counts() for peer in (passing, queueing)]
    assert disks[0] == disks[1]
    assert not queueing.passed


@pytest.fixture
def passes(monkeypatch):
    """Whether each answer that tried to pass the queue could."""
    found, pass_answer = [], Connection.pass_answer

    def noted(connection, data):
        found.append(pass_answer(connection, data))
        return found[-1]

    monkeypatch.setattr(Connection, "pass_answer", noted)
    return found


def row(feed_id, number):
    return encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY, number=number)), number)


async def test_the_answer_to_a_lone_row_is_sent_at_once(greeted, feed_id, passes, node):
    for number in (1, 2):
        await greeted.send(row(feed_id, number))
        assert Written.decode((await greeted.receive()).body).last_seq == number
    assert passes == [True, True]
    assert all(not connection.answers.held_bytes for connection in node.services.connections)


async def test_the_answer_to_a_lone_row_counts_no_longer_once_it_is_sent(greeted, feed_id, passes, node):
    for connection in node.services.connections:
        connection.memory.hold_found(1_000)  # of another answer, so that the node's account has a share of it
    await greeted.send(row(feed_id, 1))
    await greeted.receive()
    assert passes == [True]
    assert {connection.memory.charged_bytes for connection in node.services.connections} == {1_000}


async def test_rows_of_one_read_are_answered_together(greeted, feed_id, passes):
    await greeted.send(*[row(feed_id, number) for number in (1, 2, 3)])
    assert [Written.decode((await greeted.receive()).body).last_seq for _ in range(3)] == [1, 2, 3]
    assert not any(passes)


async def test_a_lone_row_passes_no_answer_that_is_queued(greeted, feed_id, node):
    for connection in node.services.connections:
        connection.answers.add(encode_frame(Opcode.RESULT, b"{}", 99))
    await greeted.send(row(feed_id, 1))
    assert [(await greeted.receive()).id for _ in range(2)] == [99, 1]


async def test_a_lone_row_passes_no_rows_of_a_stream(greeted, feed_id, passes, monkeypatch):
    monkeypatch.setattr("tailrace_server.stream.rounds.Rounds.has_news", property(lambda rounds: True))
    await greeted.send(row(feed_id, 1))
    assert Written.decode((await greeted.receive()).body).last_seq == 1
    assert passes == [False]
