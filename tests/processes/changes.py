"""A change of the members of a set of processes that is interrupted at a step, and called again until it is over.

    the command says a step ──> one of INTERRUPTIONS ──> the command again, until it ends well

Writers at quorum go on beside it. `Ledger` has their rows, and finds them again on every member.
"""

from __future__ import annotations

import subprocess
import sys

import trio

import tailrace
from tailrace.errors import OutcomeUnknown, Retryable

from .actor import require_words
from .copies import compare, read_copy
from .group import start
from .node import NodeFailed

COMMAND = (sys.executable, "-c", "from tailrace.cli import main; main()")
FEED, PARTITIONS = "ledger", 2
WAITS = "waits for"
# A call of a writer may find no leader for this long.
RETRY_S = 240.0
POLL_S = 0.05

# What is interrupted at a step: the command is killed; a node is killed and starts again, or is paused for a while.
INTERRUPTIONS = ("the command killed", "the leader killed", "the leader paused", "the node killed", "the node paused")


class Ledger:
    """Rows that writers put at quorum, each under a key of its own, with the versions that acknowledged them."""

    def __init__(self, url):
        self.acknowledged = {}  # (partition, seq): (key, value)
        self._url = url

    async def run(self, writers=4):
        """Writes until it is cancelled."""
        async with tailrace.connect(self._url, retry_for=RETRY_S, connect_timeout=RETRY_S) as client:
            feed = await client.create_feed(FEED, partitions=PARTITIONS, retention="history")
            async with trio.open_nursery() as nursery:
                for writer in range(writers):
                    nursery.start_soon(self._write, feed, writer)

    async def _write(self, feed, writer):
        number = 0
        while True:
            key, value = b"%d" % writer, b"%d" % number
            try:
                version = await feed.put(key, value, level="quorum")
                self.acknowledged[version.partition, version.seq] = (key, value)
            except (Retryable, OutcomeUnknown):
                pass
            number += 1
            await trio.sleep(0.01)  # others need the machine, too

    async def goes_on(self, rows=10):
        """Returns once so many more rows are acknowledged."""
        wanted = len(self.acknowledged) + rows
        while len(self.acknowledged) < wanted:  # noqa: ASYNC110 - other tasks
            await trio.sleep(POLL_S)

    async def require_on(self, nodes):
        """Raises if a member lacks an acknowledged row, has another one in its place, or another order."""
        copies = [await _copy_of(node, self.acknowledged) for node in nodes]
        for node, copy in zip(nodes, copies, strict=True):
            for (partition, seq), row in self.acknowledged.items():
                found = copy.rows[partition][seq - 1]
                assert (found.key, found.value) == row, (node.name, partition, seq)
            for partition in range(PARTITIONS):
                for writer in {row.key for row in copy.rows[partition]}:
                    numbers = [int(row.value) for row in copy.rows[partition] if row.key == writer]
                    assert numbers == sorted(set(numbers)), (node.name, partition, writer)
            compare(node.name, copy, nodes[0].name, copies[0])


async def _copy_of(node, acknowledged):
    """Returns the rows of a node once it has caught up with what was acknowledged."""
    async with tailrace.connect(node.url, state="any", retry_for=RETRY_S) as client:
        while True:
            copy = await read_copy(node.name, client.feed(FEED), PARTITIONS)
            if all(seq <= len(copy.rows[partition]) for partition, seq in acknowledged):
                return copy
            await trio.sleep(POLL_S)


class Change:
    """One change of the members, by the command ``tailrace member``."""

    def __init__(self, group, ledger, *arguments):
        self._group, self._ledger = group, ledger
        self._arguments = arguments
        self.said = ""

    async def run(self, step, interruption, node):
        """Runs the command, interrupts it when it says ``step``, or at its end, and calls it again until it is over."""
        async with trio.open_nursery() as nursery:
            process = await self._open(nursery)
            await self._until(step, process)
            await self._interrupt(interruption, node, process)
            await process.wait()
        await self._repeat(process)

    async def _repeat(self, process):
        """Calls the command again until it ends well."""
        while process.returncode:
            require_words(self.said)
            async with trio.open_nursery() as nursery:
                process = await self._open(nursery)
                await process.wait()

    async def run_beside(self, renew, step, interruption, node):
        """Runs ``member replace``, calls ``renew`` once it waits for that, and interrupts it when it says ``step``.

        The command names the disk that is replaced, so it is called again until it says that this is over.
        """
        told = await node.ask()
        self._arguments = (*self._arguments, "--disk", told["placement_id"])
        async with trio.open_nursery() as nursery:
            process = await self._open(nursery)
            await self._until(WAITS, process)
            if step != WAITS:
                await renew()
                await self._until(step, process)
            await self._interrupt(interruption, node, process)
            if step == WAITS:
                await renew()
            await process.wait()
        await self._repeat(process)
        await members_are(self._group, self._group.nodes)

    async def _until(self, step, process):
        """Returns when the command has said ``step``, or has ended."""
        while step not in self.said and process.returncode is None:  # noqa: ASYNC110 - another process
            await trio.sleep(0.01)

    async def _open(self, nursery):
        url = self._group.url_now
        command = [*COMMAND, "member", *self._arguments, "--url", url]
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        nursery.start_soon(self._listen, process)
        return process

    async def _listen(self, process):
        async with process.stdout:
            async for data in process.stdout:
                self.said += data.decode()

    async def _interrupt(self, interruption, node, process):
        match interruption:
            case "the command killed":
                process.kill()
            case "the leader killed":
                await self._kill(await led(self._group))
            case "the leader paused":
                await self._pause(await led(self._group))
            case "the node killed":
                await self._kill(node)
            case "the node paused":
                await self._pause(node)

    async def _kill(self, node):
        await self._group.kill(node)
        await start(node)

    async def _pause(self, node):
        """Pauses a node until another one has given it up, or the writers have gone on without it.

        While a seat is vacant, the others of three have no majority without the leader.
        """
        others = [each for each in self._group.nodes if each is not node]
        if await led(self._group) is not node:
            node.pause()
            await self._ledger.goes_on()
        else:
            node.pause()
            while not any([await _has_left(other, node) for other in others]):  # noqa: ASYNC110 - other processes
                await trio.sleep(POLL_S)
        node.proceed()


async def _has_left(node, leader):
    told = await node.ask()
    return bool(told) and told["leader"] != leader.address


async def led(group):
    """Returns the leader, when there is one."""
    while (leader := await group.leader()) is None:  # noqa: ASYNC110 - other processes
        await trio.sleep(POLL_S)
    return leader


async def members_are(group, nodes):
    """Returns once each of the nodes says that these are the members, that all vote, and that it has a leader."""
    names = sorted(node.member for node in nodes)

    async def is_so(node):
        told = await node.ask()
        return bool(told and told["votes"] and told["leader"] and sorted(told["members"]) == names)

    while not all([await is_so(node) for node in nodes]):
        if any(node.is_running and node.died() for node in nodes):
            raise NodeFailed(group.log_tail())
        await trio.sleep(POLL_S)
