"""A look-up of one key is answered at once, or in the general way, with the same rows."""

import itertools

import pytest

from tailrace.model import Level
from tailrace.wire.messages import Get, Got
from tailrace.wire.opcodes import Opcode
from tailrace_server.serving import connection as connection_module
from tailrace_server.serving import get_requests, lone_gets, time_slices
from tailrace_server.serving.connection import Connection
from tailrace_server.serving.get_requests import SENT_ALONE_KEYS_MIN

KEYS = [b"flushed", b"deleted", b"deleted later", b"newer", b"in memory", b"never"]


async def fill(feed, node):
    await feed.put(b"flushed", b"1")
    for key in (b"deleted", b"deleted later", b"newer"):
        await feed.put(key, b"1")
    await feed.delete(b"deleted")
    for partition in node.feeds.partitions():
        await node.storage.flusher.flush(partition)
    await feed.put(b"newer", b"2")
    await feed.delete(b"deleted later")
    await feed.put(b"in memory", b"")


@pytest.fixture
def general(monkeypatch):
    """Has no GET answered at once from now on."""
    return lambda: [
        monkeypatch.setattr(module, "answer_at_once", lambda *_, **__: False) for module in (get_requests, lone_gets)
    ]


async def answers_of(greeted, feed_id):
    found = {}
    for number, (key, level) in enumerate(itertools.product(KEYS, (Level.MEMORY, Level.DISK)), 1):
        frame = await greeted.ask(Opcode.GET, Get(feed_id, level, [key]).encode(number)[16:], id=number)
        [found[key, level]] = Got.decode(frame.body, [key])
    return found


async def test_one_key_is_found_as_in_the_general_way(running, greeted, feed, feed_id, general):
    await fill(feed, running.node)
    at_once = await answers_of(greeted, feed_id)
    general()
    assert at_once == await answers_of(greeted, feed_id)
    values = [None if (item := at_once[key, Level.DISK]) is None else item.value for key in KEYS]
    assert values == [b"1", None, None, b"2", b"", None]


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_key_is_answered_when_its_row_is_on_disk(
    running, greeted, feed, feed_id, general, monkeypatch, at_once
):
    if not at_once:
        general()
    committer = running.node.storage.committer
    waiting, when_durable = [], committer.when_durable
    await feed.put(b"k", b"1", level="memory")
    partition = running.node.feeds.of_id(feed_id).partition_of(b"k")
    monkeypatch.setattr(type(partition), "visible_seq", lambda partition, level: 0 if level else partition.high_seq)
    monkeypatch.setattr(committer, "when_durable", lambda done: waiting.append(done) or when_durable(done))
    frame = await greeted.ask(Opcode.GET, Get(feed_id, Level.DISK, [b"k"]).encode(1)[16:], id=1)
    assert Got.decode(frame.body, [b"k"])[0].value == b"1"
    assert len(waiting) == 1
    frame = await greeted.ask(Opcode.GET, Get(feed_id, Level.MEMORY, [b"k"]).encode(2)[16:], id=2)
    assert Got.decode(frame.body, [b"k"])[0].value == b"1"
    assert len(waiting) == 1


@pytest.mark.parametrize(("keys", "sends"), [(SENT_ALONE_KEYS_MIN, 2), (SENT_ALONE_KEYS_MIN - 1, 1)])
async def test_the_answer_to_many_keys_leaves_before_the_next_request(greeted, feed_id, monkeypatch, keys, sends):
    """The client reads it while the node looks up the next ones."""
    asked, sent, send = [b"%d" % number for number in range(keys)], [], Connection.send_answers

    def noted(connection, *rest):
        sent.append(len(connection.answers.queued))
        send(connection, *rest)

    monkeypatch.setattr(Connection, "send_answers", noted)
    monkeypatch.setattr(connection_module, "TURN_SECONDS", 60.0)
    monkeypatch.setattr(time_slices, "SLICE_SECONDS", 60.0)
    await greeted.send(b"".join(Get(feed_id, Level.MEMORY, asked).encode(number) for number in (1, 2)))
    for number in (1, 2):
        frame = await greeted.receive()
        assert (frame.id, Got.decode(frame.body, asked)) == (number, [None] * keys)
    assert sent == [2 // sends] * sends
