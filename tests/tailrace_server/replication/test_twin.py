"""A process on a copy of a member's directory, beside the original, in a set whose members are in a real etcd."""

from __future__ import annotations

import shutil

import pytest
import trio
from tests.processes.node import NodeProcess
from tests.tailrace_server.node.test_clustered import clustered_set, put, until_logged

from tailrace.errors import NotLeader
from tailrace.link.address import Address
from tailrace.trio import request
from tailrace.wire.opcodes import Opcode

pytestmark = pytest.mark.long

SECONDS_MAX = 120.0
BESIDE = "a process on a copy of this directory answers at"


@pytest.fixture
def clustered(tmp_path):
    with clustered_set(tmp_path) as found:
        yield found


def start_copy(clustered, original):
    """A node on a copy of the directory of ``original``, which runs on."""
    original.stop()
    copy = NodeProcess(
        clustered.folder / "copy", options=original.options, log_path=clustered.folder / "copy.log", log_level="info"
    )
    shutil.copytree(original.data, copy.data, dirs_exist_ok=True)
    original.start()
    clustered.nodes.append(copy)
    copy.start()
    return copy


async def until_beside(node):
    """The node's part of the status about replication, once it knows of the original, or follows the leader."""
    while True:
        found = (await node.ask(Opcode.STATUS))["replication"]
        if found["leader"] or BESIDE in found["doing"]:
            return found
        await trio.sleep(0.05)


async def until_known(node, other):
    """``node`` has been told of the present start of the directory of ``other``."""
    while True:
        told = await other.ask()
        known = (await node.ask())["known"].get(told["placement_id"])
        if known is not None and known[:2] == told["line"]["start"][:2]:
            return
        await trio.sleep(0.05)


async def test_a_copy_beside_its_original_follows_no_leader_until_that_has_ended(clustered):
    """Else the leader counts what the copy acknowledges, and the original votes without these rows."""
    with trio.fail_after(SECONDS_MAX):
        clustered.found()
        await put(clustered, b"1")
        leader = await clustered.leads()
        original, other = (node for node in clustered.nodes if node is not leader)
        await until_logged(original, "leads: follow")  # a copy of a new directory is no older copy
        copy = start_copy(clustered, original)

        found = await until_beside(copy)
        assert found["leader"] == "", "the copy follows the leader, which counts what both acknowledge"
        assert f"{BESIDE} {original.address}" in found["doing"]
        with pytest.raises(NotLeader, match=BESIDE):
            await request.ask(Address("127.0.0.1", copy.port), Opcode.PROMOTE, {"force": True}, timeout_s=SECONDS_MAX)
        assert (await original.ask())["votes"]
        assert not (await copy.ask())["votes"]
        await put(clustered, b"2")

        await until_known(leader, original)
        original.kill()  # the copy takes its place, once the registration of the original has ended
        await clustered.until(leader, lambda found: any(each["address"] == copy.address for each in found["voters"]))
        await until_logged(copy, "this node has caught up with its set, and votes from now on")
        other.kill()
        await put(clustered, b"3")
        assert BESIDE not in (await copy.ask(Opcode.STATUS))["replication"]["doing"]
