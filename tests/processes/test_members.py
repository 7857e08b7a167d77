"""``tailrace member replace``, ``add`` and ``remove`` beside a set of processes whose leader is killed at each step."""

from __future__ import annotations

import subprocess
import sys

import pytest
import trio

import tailrace

from .group import Group, run_command, start
from .node import NodeProcess

pytestmark = pytest.mark.slow

SECONDS_MAX = 300.0
COMMAND = (sys.executable, "-c", "from tailrace.cli import main; main()")
ROWS = {b"key %d" % number: b"v" for number in range(20)}


@pytest.fixture
async def group(tmp_path, nursery):
    group = Group(tmp_path, 3, failover="auto")
    await group.connect(nursery)
    await group.start(group.nodes)
    yield group
    group.end_at_once()


async def led(group):
    while (leader := await group.leader()) is None:  # noqa: ASYNC110 - another process
        await trio.sleep(0.1)
    return leader


@pytest.mark.parametrize("step", ["waits for", "the new disk", "has caught up", "is about to get it"])
async def test_a_replacement_goes_on_with_the_next_leader(group, step):
    """A step may pass too fast to be seen; then the leader is killed after the last one."""
    with trio.fail_after(SECONDS_MAX):
        leader = await led(group)
        third = next(node for node in group.nodes if node is not leader)
        disk = (await third.ask())["placement_id"][:8]
        async with tailrace.connect(group.url, retry_for=SECONDS_MAX) as client:
            feed = await client.create_feed("orders", partitions=2)
            for key, value in ROWS.items():
                await feed.put(key, value, level="quorum")
        command = [*COMMAND, "member", "replace", third.address, "--url", group.url]
        async with trio.open_nursery() as tasks:
            process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
            said = b""

            async def listen():
                nonlocal said
                async for data in process.stdout:
                    said += data

            tasks.start_soon(listen)
            while b"waits for" not in said:  # noqa: ASYNC110 - another process
                await trio.sleep(0.02)
            if step != "waits for":
                await renew(group, third)
                while step.encode() not in said and process.returncode is None:  # noqa: ASYNC110 - another process
                    await trio.sleep(0.02)
            await group.kill(leader)
            await start(leader)
            if step == "waits for":
                await renew(group, third)
            assert await process.wait() == 0
        assert said.endswith(b" votes\n")
        again = ["member", "replace", third.address, "--disk", disk, "--url", group.url]
        for more in ([], ["--plan"]):
            code, told = await run_command(*again, *more)
            assert code == 0, told
            assert told.endswith(f"votes, and {disk} has no vote: nothing to do\n")
        code, listed = await run_command("member", "list", "--node", third.address, "--json")
        assert code == 0
        assert listed.count('"votes":true') + listed.count('"votes": true') >= 2
        async with tailrace.connect(group.url, retry_for=SECONDS_MAX) as client:
            assert {item.key: item.value async for item in client.feed("orders").items()} == ROWS


async def renew(group, node):
    """Gives a member an empty disk."""
    await group.kill(node)
    node.data.rename(node.data.with_name("old"))
    await start(node)


class Written:
    """Rows that a client writes at quorum, one after the other, while members come and go."""

    def __init__(self, url):
        self.rows = {}
        self._url = url

    async def run(self):
        async with tailrace.connect(self._url, retry_for=SECONDS_MAX) as client:
            feed = await client.create_feed("orders", partitions=2)
            number = 0
            while True:
                key = b"row %d" % number
                await feed.put(key, b"v", level="quorum")
                self.rows[key] = b"v"
                number += 1

    async def goes_on(self):
        """Returns once another row is acknowledged that was begun after this call."""
        before = len(self.rows)
        while len(self.rows) < before + 2:  # noqa: ASYNC110 - another task
            await trio.sleep(0.02)


def new_node(group, tmp_path, number):
    """A node that is not started yet, with the list of the founders and itself."""
    node = NodeProcess(tmp_path / f"new{number}", log_path=tmp_path / f"new{number}.log", log_level="info")
    addresses = ",".join([*(each.address for each in group.nodes[:3]), node.address])
    node.options = ["--members", addresses, "--failover", "auto"]
    return node


async def change(group, action, node, kill_at):
    """Runs a command, and kills the leader once it has said ``kill_at``, or has ended."""
    command = [*COMMAND, "member", action, node.address, "--url", group.url]
    said = b""
    async with trio.open_nursery() as tasks:
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

        async def listen():
            nonlocal said
            async for data in process.stdout:
                said += data

        tasks.start_soon(listen)
        while kill_at not in said and process.returncode is None:  # noqa: ASYNC110 - another process
            await trio.sleep(0.01)
        leader = await led(group)
        await group.kill(leader)
        await start(leader)
        code = await process.wait()
    assert code == 0, said
    return said.decode()


async def without_vote(node):
    """Returns once the node says that it has no vote."""
    while (seen := await node.ask()) is None or seen["votes"]:  # noqa: ASYNC110 - another process
        await trio.sleep(0.1)
    return seen


async def test_a_set_grows_to_five_and_shrinks_to_three_and_loses_its_leader_at_each_step(group, nursery, tmp_path):
    """Each node starts again with the list that it was started with first."""
    with trio.fail_after(SECONDS_MAX):
        written, writing = Written(group.url), trio.CancelScope()

        async def write():
            with writing:
                await written.run()

        nursery.start_soon(write)
        await written.goes_on()
        for number, kill_at in enumerate([b"catches up", b"votes"]):
            node = new_node(group, tmp_path, number)
            await start(node)
            said = await change(group, "add", node, kill_at)
            assert said.endswith(" votes\n")
            group.nodes.append(node)
            await written.goes_on()
        removed = []
        for kill_at in (b"is to leave", b"no member"):
            node = next(each for each in group.nodes[:3] if each not in removed)
            assert "is no member any more" in await change(group, "remove", node, kill_at)
            removed.append(node)
            await written.goes_on()
        for node in removed:
            await group.kill(node)
            await start(node)
            assert (await without_vote(node))["role"] == "follower"
        await written.goes_on()
        writing.cancel()
        left = [node for node in group.nodes if node not in removed]
        code, listed = await run_command("member", "list", "--node", left[0].address, "--json")
        assert code == 0
        assert all(node.address in listed for node in left)
        assert not any(node.address in listed for node in removed)
        url = "tailrace://" + ",".join(node.address for node in left)
        async with tailrace.connect(url, retry_for=SECONDS_MAX) as client:
            found = {item.key async for item in client.feed("orders").items()}
        assert found >= written.rows.keys()
