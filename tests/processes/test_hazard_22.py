"""Hazard 22: a member of a group is stopped with work in hand, and wakes when another one owns its partitions.

Members are processes, which write each row that they handle to a file with the generation's owner; a member is stopped
by SIGSTOP, and killed by SIGKILL. In a set the leader is killed, too.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter

import pytest
import trio
from tests.tailrace_server.replication.made_set import until

import tailrace

from .group import Group
from .node import NodeProcess

pytestmark = pytest.mark.slow

SECONDS_MAX = 200.0
LEASE = ("--set", "limits.group_lease_s=2")
ROWS = 400
# A member: it handles rows, one event at a time, and commits. It stops itself where it is told to, before its commit.
PROGRAM = """
import os, signal, sys, tailrace, trio
url, stop_in = sys.argv[1], sys.argv[2]

def say(*words):
    print(*words, flush=True)

async def main():
    global stop_in
    async with tailrace.connect(url, retry_for=100) as client:
        async with client.feed("orders").consume(group="workers") as stream:
            async for event in stream:
                if isinstance(event, tailrace.Assigned):
                    say("assigned", *event.partitions)
                elif isinstance(event, tailrace.Revoked):
                    say("lost" if event.lost else "revoked", *event.partitions)
                elif isinstance(event, tailrace.Mutations):
                    if stop_in == "commit":
                        say("stopping", event.partition)
                        signal.raise_signal(signal.SIGSTOP)
                        stop_in = ''
                    try:
                        await stream.commit()
                    except tailrace.NotOwner as error:
                        say("refused", *error.partitions)
                        continue
                    for key in event.keys():
                        say("row", key.decode())

trio.run(main)
"""


class Member:
    """A process of the group. Its lines are read as they come."""

    def __init__(self, url, nursery, stop_in=""):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, url, stop_in], stdout=subprocess.PIPE, text=True
        )
        self.lines = []
        nursery.start_soon(self._read)

    async def _read(self):
        while line := await trio.to_thread.run_sync(self.process.stdout.readline, abandon_on_cancel=True):
            self.lines.append(line.split())
        self.process.stdout.close()

    def words(self, kind):
        return [word for line in self.lines if line[0] == kind for word in line[1:]]

    @property
    def owned(self):
        owned = set()
        for kind, *partitions in self.lines:
            if kind == "assigned":
                owned.update(partitions)
            elif kind in ("lost", "revoked"):
                owned.difference_update(partitions)
        return owned

    def signal(self, number):
        self.process.send_signal(number)


@pytest.fixture
async def start_member(nursery):
    members = []

    def start(url, stop_in=""):
        members.append(Member(url, nursery, stop_in))
        return members[-1]

    yield start
    for member in members:
        member.process.kill()
        member.process.wait()
    await until(lambda: all(member.process.stdout.closed for member in members))
    nursery.cancel_scope.cancel()


async def fill(feed, first=0):
    await feed.write([tailrace.Put(b"k%04d" % number, b"v") for number in range(first, first + ROWS)])


def rows(*members):
    return Counter(key for member in members for key in member.words("row"))


async def test_a_stopped_member_that_wakes_is_refused_and_nothing_is_lost_or_applied_twice(tmp_path, start_member):
    node = NodeProcess(tmp_path / "node", options=LEASE)
    node.start()
    try:
        async with tailrace.connect(node.url, retry_for=100) as client:
            feed = await client.create_feed("orders", partitions=4)
            await fill(feed)
            stopped = start_member(node.url, "commit")
            await until(lambda: stopped.words("stopping"))
            other = start_member(node.url)
            await until(lambda: len(other.owned) == 4)
            await until(lambda: len(rows(other)) == ROWS)
            stopped.signal(signal.SIGCONT)
            await until(lambda: stopped.words("refused"))
            await until(lambda: len(stopped.owned) == len(other.owned) == 2)
            await fill(feed, ROWS)
            await until(lambda: len(rows(stopped, other)) == 2 * ROWS)
            assert set(rows(stopped, other).values()) == {1}
    finally:
        node.stop()


async def test_a_leader_that_begins_honours_a_full_lease_and_a_commit_counts_once(tmp_path, nursery, start_member):
    group = Group(tmp_path, 3, failover="auto")
    for node in group.nodes:
        node.options = [*node.options, *LEASE]
    await group.connect(nursery)
    await group.start(group.nodes)
    try:
        async with tailrace.connect(group.url, retry_for=100) as client:
            feed = await client.create_feed("orders", partitions=4)
            await fill(feed)
            members = [start_member(group.url) for _ in range(2)]
            await until(lambda: all(len(member.owned) == 2 for member in members))
            before = [member.owned for member in members]
            leader = None
            while leader is None:
                leader = await group.leader()
            await group.kill(leader)
            await fill(feed, ROWS)
            await until(lambda: len(rows(*members)) == 2 * ROWS)
            assert [member.owned for member in members] == before
            assert set(rows(*members).values()) == {1}
            members[0].signal(signal.SIGKILL)
            await until(lambda: len(members[1].owned) == 4)
    finally:
        group.end_at_once()
