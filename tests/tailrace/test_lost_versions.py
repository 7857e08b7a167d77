"""Nodes whose history lacks a version: only a confirmed leader tells that the version is lost, in both shells."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
import trio
import trio.testing
from tests.tailrace_server.replication.made_set import until

import tailrace
from tailrace import blocking
from tailrace.model.failover import ENTRIES_MAX
from tailrace.requests import feed_core
from tailrace.requests.feed_core import FeedCore
from tailrace.requests.session import RequestSession
from tailrace.trio.runner import RequestRunner
from tailrace.wire.opcodes import Opcode
from tailrace_server.partition.branching import with_branch


@pytest.fixture
def answers(monkeypatch):
    """What the partition maps tell of the version, one after the other: "lost", or whether the node has come to it.

    After the last one they tell what is true.
    """
    scripted = []
    has_come_to, may_come_to = feed_core.has_come_to, feed_core.may_come_to
    last = None

    def next_answer(value, version):
        nonlocal last
        last = scripted.pop(0) if scripted else None
        return has_come_to(value, version) if last is None else last is True

    def may_come(value, version):
        return may_come_to(value, version) if last is None else last != "lost"

    monkeypatch.setattr(feed_core, "has_come_to", next_answer)
    monkeypatch.setattr(feed_core, "may_come_to", may_come)
    return scripted


@pytest.fixture
def asked(monkeypatch):
    """Whether the leader was asked for, of each request for a partition map."""
    found = []
    call = RequestSession.call

    def noted(session, opcode, value, *arguments):
        if opcode is Opcode.PARTITIONS:
            found.append(value.get("leader", False))
        return call(session, opcode, value, *arguments)

    monkeypatch.setattr(RequestSession, "call", noted)
    return found


@pytest.fixture
async def version(members):
    """That of key "k", which all members have. They know that a majority has it: the leader tells that later."""
    await members.settled()
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        version = await feed.put(b"k", b"v", level="quorum")
        await members.level("orders")

    def is_told(node):
        return node.node.feeds.named("orders").partitions[version.partition].quorum_seq >= version.seq

    await until(lambda: all(is_told(node) for node in members))
    return version


async def get(shell, url, version, retry_for, state="follower", connect_timeout=60):
    """The value of key "k" at ``version`` or later, from a node in ``state``."""
    options = {"state": state, "retry_for": retry_for, "connect_timeout": connect_timeout}

    def without_async():
        with blocking.connect(url, **options) as reader:
            return reader.feed("orders").get(b"k", at_least=version).value

    async def under_asyncio():
        async with tailrace.asyncio.connect(url, **options) as reader:
            return (await reader.feed("orders").get(b"k", at_least=version)).value

    if shell == "blocking":
        return await trio.to_thread.run_sync(without_async)
    if shell == "asyncio":
        return await trio.to_thread.run_sync(lambda: asyncio.run(under_asyncio(), debug=True))
    async with tailrace.connect(url, **options) as reader:
        return (await reader.feed("orders").get(b"k", at_least=version)).value


@pytest.mark.parametrize("shell", ["trio", "asyncio", "blocking"])
async def test_a_follower_is_waited_for_if_the_leader_has_the_version(members, version, answers, asked, shell):
    answers[:] = ["lost", True, False, "lost", True]
    assert await get(shell, members.url, version, 60) == b"v"
    assert answers == []
    assert asked[-7:-1] == [False, True, False, False, True, False], "the last one is for the look-up"


@pytest.mark.parametrize("shell", ["trio", "asyncio", "blocking"])
async def test_a_version_is_lost_if_a_majority_stands_behind_the_leader(members, version, answers, asked, shell):
    answers[:] = ["lost", "lost"]
    with pytest.raises(tailrace.VersionLost):
        await get(shell, members.url, version, 60)
    assert asked[-2:] == [False, True]


@pytest.mark.parametrize("shell", ["trio", "asyncio", "blocking"])
async def test_without_a_leader_it_is_not_known(members, version, answers, shell):
    leader = members.leader
    follower = next(node for node in members if node is not leader)
    await leader.kill()
    answers[:] = ["lost"] * 1000
    with pytest.raises(tailrace.Unreachable):
        await get(shell, follower.url, version, 1, connect_timeout=3)


async def test_a_cancelled_question_to_the_leader_leaves_the_client_usable(members, version, answers, monkeypatch):
    begun, ask_leader = trio.Event(), RequestRunner._ask_leader

    def noted(*arguments):
        begun.set()
        return ask_leader(*arguments)

    monkeypatch.setattr(RequestRunner, "_ask_leader", noted)
    leader = members.leader
    follower = next(node for node in members if node is not leader)
    await leader.kill()
    answers[:] = ["lost"]
    async with tailrace.connect(follower.url, state="follower") as reader:
        feed = reader.feed("orders")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(feed.get, b"k", at_least=version))
            await begun.wait()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert nursery.cancel_scope.cancelled_caught
        assert (await feed.get(b"k", at_least=version)).value == b"v"


def never_there(version):
    """Versions that no node of the test has come to: of an unknown branch, and of the newest one, above its end."""
    return [version._replace(branch=b"w" * 16), version._replace(seq=version.seq + 1_000)]


@pytest.mark.parametrize("shell", ["trio", "asyncio", "blocking"])
async def test_a_leader_does_not_answer_as_if_it_had_the_version(members, version, shell):
    for missing in never_there(version):
        with pytest.raises(tailrace.VersionLost, match="is not in the history of partition"):
            await get(shell, members.url, missing, 60, "leader")


@pytest.mark.parametrize("shell", ["trio", "asyncio", "blocking"])
async def test_a_leader_without_a_majority_does_not_know(members, version, shell):
    """Another node may lead, and have acknowledged the version."""
    leader = members.leader
    for node in members:
        if node is not leader:
            await node.kill()
    assert await get(shell, leader.url, version, 1, "leader") == b"v"
    for missing in never_there(version):
        with pytest.raises(tailrace.Unreachable):
            await get(shell, leader.url, missing, 1, "leader")


async def test_a_node_alone_tells_that_a_version_is_lost(running, feed):
    version = await feed.put(b"k", b"v")
    for missing in never_there(version):
        with pytest.raises(tailrace.VersionLost):
            await feed.get(b"k", at_least=missing)
    assert (await feed.get(b"k", at_least=version)).value == b"v"


async def test_a_version_of_a_branch_that_the_log_has_forgotten(running, feed):
    version = await feed.put(b"k", b"v")
    partition = running.node.feeds.named("orders").partitions[version.partition]
    for number in range(ENTRIES_MAX):
        await feed.put(b"k", b"v")
        partition.log = with_branch(partition.log, b"%016d" % number, partition.high_seq)
    with pytest.raises(tailrace.VersionLost, match="older than the 25 newest branches"):
        await feed.get(b"k", at_least=version)


async def test_another_node_answers_after_a_loss_of_the_connection(members, version, monkeypatch):
    """It is asked whether it has come to the version, too."""
    maps = []
    wait = FeedCore._wait_for_version

    def wait_and_lose(core, key, version):
        yield from wait(core, key, version)
        maps.append(version)
        if len(maps) == 1:
            for node in members:
                for connection in list(node.node.connections):
                    connection.transport.close()

    monkeypatch.setattr(FeedCore, "_wait_for_version", wait_and_lose)
    assert await get("trio", members.url, version, 60, "leader") == b"v"
    assert len(maps) == 2
