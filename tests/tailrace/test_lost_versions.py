"""A follower whose history lacks a version: the client asks the leader whether the version is lost, in both shells."""

from __future__ import annotations

import pytest
import trio

import tailrace
from tailrace import blocking
from tailrace.model import Level
from tailrace.requests import feed_core
from tailrace.requests.session import RequestSession


@pytest.fixture
def answers(monkeypatch):
    """What the partition maps tell of the version, one after the other: "lost", or whether the node has come to it.

    After the last one they tell what is true.
    """
    scripted = []
    has_come_to = feed_core.has_come_to

    def next_answer(value, version):
        if not scripted:
            return has_come_to(value, version)
        answer = scripted.pop(0)
        if answer == "lost":
            raise tailrace.VersionLost(f"{version} is lost")
        return answer

    monkeypatch.setattr(feed_core, "has_come_to", next_answer)
    return scripted


@pytest.fixture
def look_ups(monkeypatch):
    """The levels of all look-ups."""
    levels = []
    get = RequestSession.get

    def noted(session, feed_id, level, *arguments):
        levels.append(level)
        return get(session, feed_id, level, *arguments)

    monkeypatch.setattr(RequestSession, "get", noted)
    return levels


@pytest.fixture
async def version(members):
    """That of key "k", which all members have."""
    await members.settled()
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        version = await feed.put(b"k", b"v", level="quorum")
        await members.level("orders")
    return version


async def get(shell, url, version, retry_for):
    """The value of key "k" at ``version`` or later, from a follower."""

    def without_async():
        with blocking.connect(url, state="follower", retry_for=retry_for) as reader:
            return reader.feed("orders").get(b"k", at_least=version).value

    if shell == "blocking":
        return await trio.to_thread.run_sync(without_async)
    async with tailrace.connect(url, state="follower", retry_for=retry_for) as reader:
        return (await reader.feed("orders").get(b"k", at_least=version)).value


@pytest.mark.parametrize("shell", ["trio", "blocking"])
async def test_a_follower_is_waited_for_if_the_leader_has_the_version(members, version, answers, look_ups, shell):
    answers[:] = ["lost", True, False, "lost", True]
    assert await get(shell, members.url, version, 60) == b"v"
    assert answers == []
    assert look_ups == [Level.DISK]


@pytest.mark.parametrize("shell", ["trio", "blocking"])
async def test_a_version_is_lost_if_a_majority_stands_behind_the_leader(members, version, answers, look_ups, shell):
    answers[:] = ["lost", "lost"]
    with pytest.raises(tailrace.VersionLost):
        await get(shell, members.url, version, 60)
    assert look_ups == [Level.QUORUM]


@pytest.mark.parametrize("shell", ["trio", "blocking"])
async def test_without_a_leader_it_is_not_known(members, version, answers, shell):
    leader = members.leader
    follower = next(node for node in members if node is not leader)
    await leader.kill()
    answers[:] = ["lost"] * 1000
    with pytest.raises(tailrace.Unreachable):
        await get(shell, follower.url, version, 1)


async def test_a_cancelled_question_to_the_leader_leaves_the_client_usable(members, version, answers):
    leader = members.leader
    follower = next(node for node in members if node is not leader)
    await leader.kill()
    answers[:] = ["lost"]
    async with tailrace.connect(follower.url, state="follower") as reader:
        feed = reader.feed("orders")
        with trio.move_on_after(0.5) as scope:
            await feed.get(b"k", at_least=version)
        assert scope.cancelled_caught
        assert (await feed.get(b"k", at_least=version)).value == b"v"
