"""``tailrace member replace`` beside a set of processes whose leader is killed at each of its steps."""

from __future__ import annotations

import subprocess

import pytest
import trio

import tailrace

from .group import COMMAND, Group, run_command, start

pytestmark = pytest.mark.slow

SECONDS_MAX = 300.0
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
