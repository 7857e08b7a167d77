"""Replicas that lead alone for a while, as processes: stopped or killed, from a backup or not, by rows or segments."""

from __future__ import annotations

import json
import shutil

import pytest
import trio

import tailrace
from tailrace.testing.ports import free_ports
from tailrace.wire.opcodes import Opcode

from .acts import STORAGE
from .group import run_command, start
from .node import NodeProcess
from .program import Orders
from .test_catching_up import BY_SEGMENTS

SECONDS_MAX = 240.0
MODES = ("stream", "segment", "copies")


class Pair:
    """A leader and its replica, with the feed ``orders`` of one partition. The replica can be started alone."""

    def __init__(self, tmp_path, mode):
        self.mode = mode
        self.tmp_path = tmp_path
        orders = Orders(storage=STORAGE | {"pushed_age_s": 0.05})
        first, second = free_ports(2)
        self.leader = NodeProcess(tmp_path / "leader", orders, port=first, log_path=tmp_path / "leader.log")
        self.replica = NodeProcess(tmp_path / "replica", orders, port=second, log_path=tmp_path / "replica.log")
        self._copying = BY_SEGMENTS if mode == "copies" else ()
        self.leader.options = [*self._copying]
        self.following = ["--replica-of", self.leader.address, *self._copying]
        self.replica.options = self.following

    async def begin(self):
        await start(self.leader)
        await start(self.replica)
        async with tailrace.connect(self.leader.url, retry_for=SECONDS_MAX) as client:
            mode = "segment" if self.mode == "segment" else "stream"
            await client.create_feed("orders", partitions=1, replication=mode)
        await self.write(self.leader, "shared")
        await self.equal()

    async def write(self, node, name, count=5):
        async with tailrace.connect(node.url, retry_for=SECONDS_MAX) as client:
            for number in range(count):
                await client.feed("orders").put(b"%s %d" % (name.encode(), number), name.encode())

    async def start_alone(self, *options):
        self.replica.options = [*options, *self._copying]
        await start(self.replica)

    async def end(self, node, how):
        await trio.to_thread.run_sync(node.stop if how == "stop" else node.kill)

    async def equal(self):
        """Returns when the replica has the leader's history and rows."""
        while True:
            if await histories(self.replica) == await histories(self.leader):
                break
            await trio.sleep(0.05)
        assert await rows(self.replica) == await rows(self.leader)

    async def replace(self, data):
        """Puts the directory ``data`` in the place of the replica's."""
        shutil.rmtree(self.replica.data)
        code, said = await run_command("restore", str(data), str(self.replica.data))
        assert code == 0, said

    def lost(self):
        """The seqs that the replica has put aside."""
        lines = [
            json.loads(line)
            for path in (self.replica.data / "lost").glob("*/index.jsonl")
            for line in path.read_text().splitlines()
        ]
        return sorted({seq for line in lines for seq in range(line["first_seq"], line["last_seq"] + 1)})

    async def check(self):
        for node in (self.replica, self.leader):
            await self.end(node, "stop")
            code, said = await run_command("verify", str(node.data))
            assert code == 0, said
            node.check_log()


async def histories(node):
    """The failover log and the last seq of the partition."""
    async with tailrace.connect(node.url, state="any", retry_for=SECONDS_MAX) as client:
        [partition] = (await client.call(Opcode.PARTITIONS, {"name": "orders"}))["partitions"]
        return partition["log"], partition["high_seq"]


async def rows(node):
    async with tailrace.connect(node.url, state="any", retry_for=SECONDS_MAX) as client:
        return {item.key: item.value async for item in client.feed("orders").items()}


@pytest.fixture
async def pair(tmp_path, request):
    made = Pair(tmp_path, request.param)
    with trio.fail_after(SECONDS_MAX):
        await made.begin()
    yield made
    made.leader.end_at_once()
    made.replica.end_at_once()


@pytest.mark.long
@pytest.mark.parametrize(("pair", "how"), [("stream", "stop"), *((mode, "kill") for mode in MODES)], indirect=["pair"])
async def test_a_replica_that_led_alone_gives_its_rows_up(pair, how):
    with trio.fail_after(SECONDS_MAX):
        await pair.end(pair.replica, how)
        await pair.start_alone()
        await pair.write(pair.replica, "alone")
        await pair.write(pair.leader, "leader")
        await pair.end(pair.replica, how)
        await pair.start_alone(*pair.following)
        await pair.equal()
        assert await rows(pair.leader) == numbered("shared", "leader")
        assert pair.lost() == [6, 7, 8, 9, 10]
        await pair.check()


@pytest.mark.long
@pytest.mark.parametrize(
    ("pair", "of"), [("stream", "leader"), *((mode, "replica") for mode in MODES)], indirect=["pair"]
)
async def test_a_restored_backup_that_led_alone_gives_its_rows_up(pair, tmp_path, of):
    """The backup is taken of a running node."""
    with trio.fail_after(SECONDS_MAX):
        source = pair.leader if of == "leader" else pair.replica
        code, said = await run_command("backup", str(source.data), str(tmp_path / "backup"))
        assert code == 0, said
        await pair.end(pair.replica, "stop")
        await pair.replace(tmp_path / "backup")
        await pair.start_alone()
        assert await rows(pair.replica) == numbered("shared")
        await pair.write(pair.replica, "alone")
        await pair.write(pair.leader, "leader")
        await pair.end(pair.replica, "stop")
        await pair.start_alone(*pair.following)
        await pair.equal()
        assert await rows(pair.leader) == numbered("shared", "leader")
        assert pair.lost() == [6, 7, 8, 9, 10]
        await pair.check()


@pytest.mark.long
@pytest.mark.parametrize("pair", ["stream"], indirect=True)
async def test_a_restored_backup_does_not_follow_at_once_and_an_empty_directory_does(pair, tmp_path):
    """It may lack writes that it has acknowledged. Nothing in it is changed by the start that is refused."""
    with trio.fail_after(SECONDS_MAX):
        code, said = await run_command("backup", str(pair.replica.data), str(tmp_path / "backup"))
        assert code == 0, said
        await pair.write(pair.leader, "leader")
        await pair.end(pair.replica, "kill")
        await pair.replace(tmp_path / "backup")
        pair.replica.options = pair.following
        await trio.to_thread.run_sync(pair.replica.launch)
        assert not await trio.to_thread.run_sync(pair.replica.becomes_ready)
        assert await trio.to_thread.run_sync(pair.replica.wait) == 1
        assert "give this node an empty directory" in pair.replica.log_tail()
        shutil.rmtree(pair.replica.data)
        await start(pair.replica)
        await pair.equal()
        assert await rows(pair.leader) == numbered("shared", "leader")
        await pair.check()


@pytest.mark.long
@pytest.mark.parametrize("pair", MODES, indirect=True)
async def test_the_old_leader_follows_the_replica_that_leads_alone(pair):
    with trio.fail_after(SECONDS_MAX):
        await pair.write(pair.leader, "leader")
        await pair.equal()
        await pair.end(pair.replica, "kill")
        await pair.write(pair.leader, "late")
        await pair.end(pair.leader, "kill")
        await pair.start_alone()
        await pair.write(pair.replica, "alone")
        pair.leader.options += ["--replica-of", pair.replica.address]
        await start(pair.leader)
        await pair.equal()
        assert await rows(pair.leader) == numbered("shared", "leader", "alone")
        await pair.check()


def numbered(*names):
    return {b"%s %d" % (name.encode(), number): name.encode() for name in names for number in range(5)}
