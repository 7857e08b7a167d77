"""What is said of positions is what happens to who resumes with them: each outcome, against a real node."""

import contextlib

import pytest
import trio

import tailrace
from tailrace import BadPosition, DataGone, Mutations, Outcome, Position, Positions, Rollback
from tailrace.consuming.explain import explain, request_of
from tailrace.errors import ProtocolError
from tailrace.model import EndReason, Level
from tailrace.model.failover import SNAPSHOT_LAST_UNKNOWN, FailoverLog
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import ResumeAnswer, RollBack, StreamEnd, StreamOk


@pytest.fixture
async def feed(client):
    """A feed of one partition."""
    return await client.create_feed("orders", partitions=1)


async def fill(feed, *keys):
    for key in keys:
        await feed.put(key, b"v")


async def positions_after(feed, count=None):
    """Where a consumer stands that has been given ``count`` mutations, or all that there is, one a block."""
    async with feed.consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, Mutations) and event.last_seq == count:
                return stream.latest_positions
        return stream.latest_positions


async def one(feed, positions):
    [explanation] = (await feed.explain_resume(positions)).values()
    return explanation


async def happens(feed, positions):
    """What really happens: a Rollback, or the seq that the first mutation comes above; None where nothing comes."""
    async with feed.consume(positions, until="now") as stream:
        async for event in stream:
            if isinstance(event, Rollback):
                return event
            if isinstance(event, Mutations):
                return event.first_seq - 1
    return None


async def unclean_restart(running, lost_from=None):
    """A start after a stop that was not clean; what was written since ``lost_from`` was taken is lost."""
    await running.stop()
    if lost_from is not None:
        running.put_back(lost_from)
    with contextlib.suppress(FileNotFoundError):
        (running.path / "CLEAN").unlink()
    await running.start()


@pytest.fixture
def running(running, tmp_path):
    running.path = tmp_path / "data"
    return running


async def test_it_goes_on_where_it_stands(feed):
    await fill(feed, b"a", b"b", b"c")
    positions = await positions_after(feed, 1)
    found = await one(feed, positions)
    assert found[:7] == (0, Outcome.GOES_ON, "stands", 1, None, 1, 2)
    assert "goes on above seq 1" in found.message
    assert (found.branch, found.term) == (found.node_branch, found.node_term) == (positions[0].branch, 1)
    assert await happens(feed, positions) == 1


async def test_positions_of_nothing(client, feed):
    await fill(feed, b"a")
    async with feed.consume("beginning") as stream:
        positions = stream.positions
    found = await one(feed, positions)
    assert found[:7] == (0, Outcome.GOES_ON, "nothing_stored", 0, None, 0, 1)
    other = await client.create_feed("many", partitions=3)
    await other.write([tailrace.Put(b"%d" % number, b"v") for number in range(20)])
    async with other.consume("now", partitions=[1]) as stream:
        explained = await other.explain_resume(stream.positions)
    assert {p: e.reason for p, e in explained.items()} == {0: "nothing_stored", 1: "stands", 2: "nothing_stored"}


async def test_a_restart_that_lost_nothing(running, feed):
    await fill(feed, b"a", b"b")
    positions = await positions_after(feed)
    await unclean_restart(running)
    found = await one(feed, positions)
    assert found[:7] == (0, Outcome.GOES_ON, "stands", 2, None, 2, 0)
    assert (found.term, found.node_term, found.node_base) == (1, 2, 2)


async def test_a_restart_that_lost_what_it_had_seen(running, feed, tmp_path):
    await fill(feed, b"a", b"b")
    running.copy_data(tmp_path / "copy")
    await fill(feed, b"c", b"d")
    positions = await positions_after(feed)
    await unclean_restart(running, tmp_path / "copy")
    await fill(feed, b"e")
    found = await one(feed, positions)
    assert found[:7] == (0, Outcome.STARTS_OVER, "forked", 4, 2, 0, 3)
    assert "both histories agree up to seq 2 only" in found.message
    assert "(its ring) reads only them again" in found.message
    assert await happens(feed, positions) == Rollback(0, 0, None)


async def test_half_of_a_snapshot_of_which_the_rest_was_lost(running, feed, tmp_path):
    await fill(feed, b"a")
    start = await positions_after(feed)
    running.copy_data(tmp_path / "copy")
    await fill(feed, b"b", b"c", b"d")
    log = start[0].log
    positions = start.with_position(0, Position.at(log, 2, 1, 4))
    await unclean_restart(running, tmp_path / "copy")
    found = await one(feed, positions)
    assert found[:7] == (0, Outcome.STARTS_OVER, "half_snapshot", 2, 1, 0, 1)
    assert "goes back to its start, seq 1" in found.message
    assert await happens(feed, positions) == Rollback(0, 0, None)


async def test_a_backup_that_knows_less(running, feed, tmp_path):
    """An older copy without --restored: the consumer has seen a later term, and waits."""
    await fill(feed, b"a")
    await running.stop()
    running.copy_data(tmp_path / "copy")
    await running.start()
    for key in (b"b", b"c"):
        await unclean_restart(running)
        await fill(feed, key)
    positions = await positions_after(feed)
    assert positions[0].log.term == 3
    await running.stop()
    running.put_back(tmp_path / "copy")
    await running.start()
    found = await one(feed, positions)
    assert found[:7] == (0, Outcome.WAITS, "behind", 3, None, None, None)
    assert "The node is at term 2, and it has seen term 3" in found.message
    with trio.move_on_after(0.2) as scope:
        await happens(feed, positions)
    assert scope.cancelled_caught


async def test_deletions_that_were_purged(feed, node):
    await fill(feed, b"a", b"b", b"c")
    positions = await positions_after(feed, 1)
    [partition] = (p for feed in node.feeds for p in feed.partitions)
    partition.purge_seq = 2
    found = await one(feed, positions)
    assert found[:7] == (0, Outcome.STARTS_OVER, "purged", 1, 0, 0, 3)
    assert found.purge_seq == 2
    assert "purged up to seq 2" in found.message
    assert await happens(feed, positions) == Rollback(0, 0, None)


async def test_a_history_that_was_trimmed(client, node):
    feed = await client.create_feed("history", partitions=1, retention="history")
    await fill(feed, b"a", b"b", b"c")
    positions = await positions_after(feed, 1)
    [partition] = (p for feed in node.feeds for p in feed.partitions)
    partition.trim_seq = 2
    found = await one(feed, positions)
    assert found[:7] == (0, Outcome.ENDS, "trimmed", 1, None, None, None)
    assert "the kept mutations begin above seq 2" in found.message
    with pytest.raises(DataGone, match="begin above seq 2") as raised:
        await happens(feed, positions)
    assert raised.value.first_seq == 3


async def test_a_history_that_was_trimmed_above_where_it_would_go_back_to(running, client, tmp_path):
    feed = await client.create_feed("history", partitions=1, retention="history")
    await fill(feed, b"a", b"b")
    running.copy_data(tmp_path / "copy")
    await fill(feed, b"c", b"d")
    positions = await positions_after(feed)
    await unclean_restart(running, tmp_path / "copy")
    await fill(feed, b"e", b"f", b"g")
    [partition] = (p for feed in running.node.feeds for p in feed.partitions)
    partition.trim_seq = 3
    found = await one(feed, positions)
    assert found[:4] == (0, Outcome.ENDS, "trimmed", 4)
    reason = "It has rows that the node has lost, and would have to go back, but the kept mutations begin above seq 3. "
    assert reason in found.message
    with pytest.raises(DataGone, match="begin above seq 3"):
        await happens(feed, positions)


async def test_another_feed_and_another_cluster(client, feed):
    await fill(feed, b"a")
    positions = await positions_after(feed)
    other = await client.create_feed("other", partitions=1)
    with pytest.raises(BadPosition, match="it is another feed, or one that was dropped"):
        await other.explain_resume(positions)
    with pytest.raises(BadPosition, match="belong to cluster 0000"):
        await feed.explain_resume(Positions(bytes(16), positions.feed_id, positions))
    await client.drop_feed("orders")
    with pytest.raises(tailrace.UnknownFeed):
        await feed.explain_resume(positions)
    again = await client.create_feed("orders", partitions=1)
    with pytest.raises(BadPosition, match="begin anew"):
        await again.explain_resume(positions)


async def test_branches_that_nobody_knows(feed):
    await fill(feed, b"a", b"b")
    positions = await positions_after(feed)
    stranger = positions.with_position(0, Position.at(FailoverLog([(b"x" * 16, 1, 0)]), 2))
    found = await one(feed, stranger)
    assert found[:7] == (0, Outcome.STARTS_OVER, "no_common_branch", 2, 0, 0, 2)
    assert "branch 78787878 of term 1" in found.message
    assert await happens(feed, stranger) == Rollback(0, 0, None)


async def test_an_unfinished_rollback_and_rows_above(feed):
    await fill(feed, b"a", b"b")
    log = (await positions_after(feed))[0].log
    positions = await positions_after(feed)
    unfinished = positions.with_position(0, Position.at(log, 1, 1, SNAPSHOT_LAST_UNKNOWN))
    found = await one(feed, unfinished)
    assert found[:7] == (0, Outcome.STARTS_OVER, "unfinished_rollback", 1, 1, 0, 2)
    assert await happens(feed, unfinished) == Rollback(0, 0, None)


async def test_a_node_that_stops(client, feed, node):
    request = request_of((await feed.resolve()).feed_id, 0, Position.at(FailoverLog(), 0), Level.DISK)
    for connection in node.connections:
        connection.draining = True
    answer = await client.call(Opcode.EXPLAIN_RESUME, request.to_json())
    found = explain(0, Position.at(FailoverLog(), 0), ResumeAnswer.of_json(answer))
    assert found[:4] == (0, Outcome.WAITS, "draining", 0)
    assert "It asks again: the node is stopping" in found.message


LOG = FailoverLog([(b"u" * 16, 1, 0)])


@pytest.mark.parametrize(
    "answer",
    [
        StreamOk(0, 5, LOG, 9),
        RollBack(0, 3, LOG, "forked"),
        StreamEnd(0, EndReason.TRIMMED, "gone", 1, 7),
        StreamEnd(0, EndReason.BEHIND, "behind", 1),
    ],
)
def test_answers_come_out_as_they_went_in(answer):
    explained = ResumeAnswer(answer, LOG, 9, 8, 7, 6)
    assert ResumeAnswer.of_json(explained.to_json()) == explained


@pytest.mark.parametrize(
    "change", [{"opcode": "BLOCK"}, {"answer": 1}, {"answer": {}}, {"log": 1}, {"high_seq": -1}, {"opcode": None}]
)
def test_answers_that_are_none(change):
    value = ResumeAnswer(StreamOk(0, 5, LOG, 9), LOG, 9, 8, 7, 6).to_json() | change
    with pytest.raises(ProtocolError):
        ResumeAnswer.of_json(value)


def test_every_end_and_reason_has_words():
    position = Position.at(LOG, 5)
    for reason in EndReason:
        found = explain(0, position, ResumeAnswer(StreamEnd(0, reason, "because of it", 1), LOG))
        assert found.reason == reason.value
        assert "because of it" in found.message or reason is EndReason.BEHIND
        assert (found.outcome is Outcome.ENDS) == (reason in tailrace.consuming.stream_ends.FINAL)
    unknown = explain(0, position, ResumeAnswer(RollBack(0, 3, LOG, "eclipse"), LOG))
    assert "go back to seq 3 (eclipse)" in unknown.message
    with pytest.raises(ProtocolError, match="which is above the position, seq 5"):
        explain(0, position, ResumeAnswer(RollBack(0, 7, LOG, "forked"), LOG))


def test_rows_above_the_nodes_history():
    log = FailoverLog([(b"v" * 16, 2, 5), (b"u" * 16, 1, 0)])
    found = explain(0, Position.at(LOG, 5, 5, 9), ResumeAnswer(StreamOk(0, 5, log, 5), log, 5, 5))
    assert found[:7] == (0, Outcome.STARTS_OVER, "ahead", 5, 5, 0, 5)
    assert "agree up to seq 5 only" in found.message
    assert found.to_json()["node_branch"] == (b"v" * 16).hex()
