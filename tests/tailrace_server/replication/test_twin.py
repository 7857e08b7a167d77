"""A process on a copy of a member's directory, beside the original: what it finds, and in a set in a real etcd."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
import trio
from tests.processes.node import NodeProcess
from tests.tailrace_server.node.test_clustered import clustered_set, put, until, until_logged

import tailrace
from tailrace.errors import NotLeader, Unreachable
from tailrace.link.address import Address
from tailrace.trio import request
from tailrace.wire.opcodes import Opcode
from tailrace_server.replication import twin as twin_module
from tailrace_server.replication.election import MemberState
from tailrace_server.replication.lineage import Lineage, MemberStart
from tailrace_server.replication.twin import Twin

SECONDS_MAX = 240.0  # on a busy machine; the test may take 300 s
BESIDE = "a process on a copy of this directory answers at"
UNKNOWN = "A process on a copy of this directory may run there"
NAME, OWN, ID = Address("a", 1), Address("b", 2), b"p" * 16
LINE = Lineage(MemberStart(3, b"t" * 8, (0, 0)))


class Asking:
    """A twin of a member with the name ``NAME`` that runs at ``OWN``, and the answers at the member's address."""

    def __init__(self):
        self.address, self.answer, self.has_seat, self.asked = NAME, None, True, 0
        config = SimpleNamespace(listen=OWN, member_name=NAME, replication=SimpleNamespace(ask_timeout_s=1.0))
        node = SimpleNamespace(config=config, listening=OWN, identity=SimpleNamespace(placement_id=ID))
        leadership = SimpleNamespace(address_of=lambda name: str(self.address))
        self.twin = Twin(node, leadership, str(NAME), lambda: (LINE, False), lambda: self.has_seat)

    async def look_at(self, node, address, question, timeout_s):
        self.asked += 1
        if self.answer is None:
            raise Unreachable("nobody answers")
        return self.answer


@pytest.fixture
def asking(monkeypatch):
    found = Asking()
    monkeypatch.setattr(twin_module, "look_at", found.look_at)
    return found


async def test_without_an_answer_it_stands_back_until_the_members_know_its_address(asking):
    """The original may be paused, and count later: so no number of looks is enough."""
    assert UNKNOWN in asking.twin.why, "it counts before it has asked"
    for _ in range(20):
        assert await asking.twin.look()
        assert f"the others find {NAME} at {NAME}, and not at {OWN}. {UNKNOWN}" in asking.twin.why
        assert f"start this node with --listen {NAME}" in asking.twin.why
    asking.address = OWN
    assert asking.twin.why == ""
    assert not await asking.twin.look()
    assert asking.asked == 20


async def test_it_stands_back_anew_if_the_members_find_it_elsewhere_again(asking):
    asking.address = OWN
    assert not await asking.twin.look()
    asking.address = NAME
    assert UNKNOWN in asking.twin.why
    assert await asking.twin.look()


async def test_an_answer_of_another_start_of_its_directory_is_a_copys(asking, caplog):
    asking.answer = MemberState(ID, line=Lineage(MemberStart(3, b"u" * 8, (0, 0))))
    assert await asking.twin.look()
    assert asking.twin.why.startswith(f"{BESIDE} {NAME}")
    assert [(each.levelname, each.message) for each in caplog.records] == [("ERROR", asking.twin.why)]
    asking.answer = None
    assert await asking.twin.look(), "the copy may be cut off"


async def test_its_own_answer_is_none_of_a_copy(asking):
    asking.answer = MemberState(ID, line=LINE)
    assert not await asking.twin.look()


@pytest.mark.parametrize("has_seat", [True, False])
async def test_another_directory_at_its_address_tells_a_new_disk_only_that_there_is_no_copy(asking, has_seat):
    asking.has_seat, asking.answer = has_seat, MemberState(b"q" * 16)
    assert await asking.twin.look() is has_seat


@pytest.fixture
def clustered(tmp_path):
    with clustered_set(tmp_path) as found:
        yield found


def make_copy(clustered, original):
    """A node on a copy of the directory of ``original``, which runs on; it is not started."""
    original.stop()
    copy = NodeProcess(
        clustered.folder / "copy", options=original.options, log_path=clustered.folder / "copy.log", log_level="info"
    )
    shutil.copytree(original.data, copy.data, dirs_exist_ok=True)
    original.start()
    clustered.nodes.append(copy)
    return copy


async def until_beside(node, text=BESIDE):
    """The node's part of the status about replication, once it says ``text``, or follows the leader."""
    while True:
        found = (await node.ask(Opcode.STATUS))["replication"]
        if found["leader"] or text in found["doing"]:
            return found
        await trio.sleep(0.05)


async def until_told_of_copy(node):
    """``node`` knows that there is a copy.

    The leader has told it that it was replaced; or that two processes follow, if it has come back before. Or etcd had
    told its socket where the members find the copy, before etcd ended.
    """
    told = ("another process on the directory", "two processes follow this node", UNKNOWN)
    await until(lambda: any(text in node.log_path.read_text() for text in told))


async def until_connected(leader, node):
    """``leader`` counts ``node``, which follows it."""
    while True:
        found = (await leader.ask(Opcode.STATUS))["replication"]["replicas"]
        if any((each["address"], each["votes"], each["connected"]) == (node.address, True, True) for each in found):
            return
        await trio.sleep(0.05)


async def until_known(node, other):
    """``node`` has been told of the present start of the directory of ``other``."""
    while True:
        told = await other.ask()
        known = (await node.ask())["known"].get(told["placement_id"])
        if known is not None and known[:2] == told["line"]["start"][:2]:
            return
        await trio.sleep(0.05)


@pytest.mark.long
async def test_a_copy_beside_its_original_follows_no_leader_until_that_has_ended(clustered):
    """Else the leader counts what the copy acknowledges, and the original votes without these rows."""
    with trio.fail_after(SECONDS_MAX):
        clustered.found()
        await put(clustered, b"1")
        leader = await clustered.leads()
        original, other = (node for node in clustered.nodes if node is not leader)
        await until_logged(original, "leads: follow")  # a copy of a new directory is no older copy
        copy = make_copy(clustered, original)
        copy.start()

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


@pytest.mark.long
async def test_a_copy_does_not_count_while_its_original_is_paused_and_etcd_is_gone(clustered):
    """Else what the leader and the copy hold is lost once the original goes on, and votes with the third member."""
    with trio.fail_after(SECONDS_MAX):
        clustered.found()
        await put(clustered, b"1")
        leader = await clustered.leads()
        original, other = (node for node in clustered.nodes if node is not leader)
        await until_logged(original, "leads: follow")
        copy = make_copy(clustered, original)
        await until_logged(original, "leads: follow")
        clustered.etcd.stop()
        original.pause()
        copy.start()
        found = await until_beside(copy, UNKNOWN)
        assert (found["leader"], (await copy.ask())["votes"]) == ("", False)

        original.proceed()
        other.kill()
        await put(clustered, b"2")
        leader.kill()
        other.start()
        await put(clustered, b"3")
        assert not (await copy.ask())["votes"]
        clustered.etcd.start().wait()
        leader.start()
        original.kill()
        await until_logged(copy, "this node has caught up with its set, and votes from now on")
        await put(clustered, b"4")


@pytest.mark.long
async def test_an_original_that_was_paused_does_not_count_beside_the_copy_in_its_place(clustered):
    """It goes on by its connection to the leader, and by the address that it knows of itself while etcd is gone."""
    with trio.fail_after(SECONDS_MAX):
        clustered.found()
        await put(clustered, b"1")
        leader = await clustered.leads()
        original, other = (node for node in clustered.nodes if node is not leader)
        await until_logged(original, "leads: follow")
        copy = make_copy(clustered, original)
        await until_connected(leader, original)
        original.pause()
        copy.start()  # it takes the place once the registration of the original has ended
        await until_logged(leader, "another process on the directory")
        await until_connected(leader, original)  # the leader names members
        await until_known(other, copy)
        clustered.etcd.stop()
        other.kill()
        await put(clustered, b"2")

        copy.pause()
        original.proceed()
        await until_told_of_copy(original)
        copy.proceed()
        await put(clustered, b"3")
        leader.kill()
        other.start()
        async with tailrace.connect(copy.url + "," + other.address) as client:
            assert (await client.feed("orders").get(b"k", level="quorum")).value == b"3"
        await put(clustered, b"4")
