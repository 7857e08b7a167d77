"""Sets whose members are in a real etcd: founded, without etcd, with an etcd that lost everything, and moved."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import signal

import pytest
import trio
from tests.processes.node import NodeProcess
from tests.processes.proxy import open_proxy
from tests.tailrace_server.coordination.made_etcd import Etcd, require_etcd

import tailrace
from tailrace.testing.ports import free_port
from tailrace.wire.opcodes import Opcode
from tailrace_server.coordination.etcd_codec import encode, entries_of, prefix_range

pytestmark = pytest.mark.long

UNTIL_SECONDS_MAX = 90.0  # the test may take 300 s, and this says what was found


class ClusteredSet:
    """An etcd, and nodes that use it."""

    def __init__(self, folder):
        self.folder = folder
        self.etcd = Etcd(folder / "etcd").start().wait()
        self.nodes = []

    def add(self, *options, endpoint=""):
        """Launches a node, and does not wait for it. ``endpoint``: of etcd, if another one leads there."""
        name = f"n{len(self.nodes)}"
        options = ["--cluster-store", f"etcd://{endpoint or self.etcd.endpoint}", "--cluster", "demo", *options]
        node = NodeProcess(self.folder / name, options=options, log_path=self.folder / f"{name}.log", log_level="info")
        self.nodes.append(node)
        node.launch()
        return node

    def found(self, count=3):
        for _ in range(count):
            self.add()
        for node in self.nodes:
            node.require_ready()

    @property
    def url(self):
        return "tailrace://" + ",".join(node.address for node in self.nodes)

    def values(self):
        """The values in etcd, by the end of their key."""
        status, answer = self.etcd.ask("kv/range", prefix_range("/tailrace/demo/"))
        assert status == 200
        return {
            key.removeprefix("/tailrace/demo/"): json.loads(entry.value) for key, entry in entries_of(answer).items()
        }

    def seats(self):
        """The directory in each member's seat by etcd, by the member's name."""
        return {each["name"]: each["placement_id"] for each in self.values()["groups/0/voters"]["voters"]}

    async def status(self, node):
        return (await node.ask(Opcode.STATUS))["cluster_store"]

    async def until(self, node, condition):
        """Waits until the status of the node's coordinator fulfils ``condition``; returns it."""
        found = None
        with trio.move_on_after(UNTIL_SECONDS_MAX):
            while True:
                found = await self.status(node)
                if condition(found):
                    return found
                await trio.sleep(0.05)
        pytest.fail(f"the coordinator of {node.address} has stayed so: {found}")

    async def until_recorded(self, node, seats):
        """Waits until the node's own record of the voters has these directories in its seats."""
        while True:
            if (await node.ask(Opcode.STATUS))["replication"]["voters"]["seats"] == list(seats):
                return
            await trio.sleep(0.05)

    async def leads(self):
        """The node whose leadership etcd tells, once it does."""
        while True:
            told = self.values().get("groups/0/leader")
            for node in self.nodes:
                if told is not None and told["address"] == node.address:
                    return node
            await trio.sleep(0.05)

    def stop(self):
        for node in self.nodes:
            node.end_at_once()
        self.etcd.stop()


@contextlib.contextmanager
def clustered_set(folder):
    """A set in an etcd of its own; its logs are checked at the end."""
    require_etcd()
    found = ClusteredSet(folder)
    yield found
    found.stop()
    for node in found.nodes:
        node.check_log()


@pytest.fixture
def clustered(tmp_path):
    with clustered_set(tmp_path) as found:
        yield found


async def until(condition):
    while not condition():  # noqa: ASYNC110 - another process fulfils it
        await trio.sleep(0.05)


async def until_logged(node, text):
    await until(lambda: text in node.log_path.read_text())


async def put(clustered, value):
    with trio.fail_after(60):
        async with tailrace.connect(clustered.url) as client:
            orders = await client.create_feed("orders", partitions=2)
            await orders.put(b"k", value, level="quorum")
            assert (await orders.get(b"k", level="quorum")).value == value


async def test_a_set_without_etcd_and_with_one_that_has_lost_everything(clustered):
    clustered.found()
    await put(clustered, b"1")
    leader = (await clustered.until(clustered.nodes[1], lambda found: found["leader"]))["leader"]
    await until(lambda: record_of_leader_is_in(clustered.values()))
    keys = clustered.values()
    assert keys["groups/0/leader"]["address"] == leader["address"]
    assert {each["name"] for each in keys["groups/0/voters"]["voters"]} == {n.address for n in clustered.nodes}
    assert sum(key.startswith("nodes/") for key in keys) == 3

    clustered.etcd.stop()
    followers = [node for node in clustered.nodes if node.address != leader["address"]]
    found = await clustered.until(followers[0], lambda found: found["state"] == "unreachable")
    assert "writes" in found["goes_on"]
    assert "founding" in found["waits"]
    followers[0].kill()
    await put(clustered, b"2")
    followers[0].start()
    followers[1].kill()
    await put(clustered, b"3")  # with the node that started without etcd
    followers[1].start()

    shutil.rmtree(clustered.etcd.directory)
    clustered.etcd.start().wait()
    await until(lambda: len(clustered.values()) == 6)
    again = clustered.values()
    for key in ("format", "groups/0/voters"):
        assert again[key] == keys[key]
    assert again["groups/0/leader"] == keys["groups/0/leader"]
    found = await clustered.until(
        clustered.nodes[0], lambda found: (found["state"], found["case"]) == ("connected", "voter")
    )
    assert found["epoch"] == 1
    await put(clustered, b"4")


async def test_a_member_that_moves_is_found_by_the_others_and_by_clients(clustered):
    clustered.found()
    await put(clustered, b"1")
    leader = (await clustered.until(clustered.nodes[1], lambda found: found["leader"]))["leader"]
    [moved] = [node for node in clustered.nodes if node.address == leader["address"]]
    others = [node for node in clustered.nodes if node is not moved]
    name = moved.address
    moved.stop()
    moved.port = free_port()
    moved.start()
    for node in others:
        [told] = [
            each
            for each in (
                await clustered.until(node, lambda found: any(e["address"] == moved.address for e in found["voters"]))
            )["voters"]
            if each["name"] == name
        ]
        assert told["registered"]
    await put(clustered, b"2")  # it leads again, since it was the last leader
    status = await others[0].ask(Opcode.STATUS)
    assert name in status["replication"]["members"]
    async with tailrace.connect(others[0].url) as client:  # by the others' word
        assert (await client.feed("orders").get(b"k", level="quorum")).value == b"2"
    others[0].kill()
    await put(clustered, b"3")


async def test_a_node_that_is_no_founder_waits_and_says_so(clustered):
    clustered.add("--voters", "2")
    clustered.add("--voters", "3")
    await until_logged(clustered.nodes[0], "nodes were started with different --voters: 2, 3")
    clustered.nodes[1].signal(15)
    assert clustered.nodes[1].wait() == 0
    clustered.nodes[1].options[-1] = "2"
    clustered.nodes[1].launch()
    for node in clustered.nodes:
        node.require_ready()
    spare = clustered.add("--voters", "2")
    await until_logged(spare, f"until it is added with `tailrace member add {spare.address} --node ")
    spare.require_ready()
    await put(clustered, b"1")
    replication = (await spare.ask(Opcode.STATUS))["replication"]
    assert (replication["role"], replication["leader"]) == ("follower", "")
    spare.signal(15)
    assert spare.wait() == 0


async def test_a_member_that_is_started_with_another_cluster_ends_and_names_the_right_one(clustered):
    """Else it would put the voters of its set below the other name, and look healthy."""
    clustered.found()
    await put(clustered, b"1")
    node = clustered.nodes[1]
    node.stop()
    place = node.options.index("demo")
    node.options[place] = "other"
    node.launch()
    assert not node.becomes_ready()
    assert node.wait() == 1
    assert "belongs to a set whose keys are below /tailrace/demo/" in node.log_tail()
    assert "start it with --cluster demo" in node.log_tail()
    status, answer = clustered.etcd.ask("kv/range", prefix_range("/tailrace/other/"))
    assert (status, entries_of(answer)) == (200, {})
    node.options[place] = "demo"
    node.start()
    await put(clustered, b"2")


async def test_a_lost_disk_is_replaced_and_etcd_has_the_new_one(clustered):
    clustered.found()
    await put(clustered, b"1")
    leader = await clustered.leads()
    lost, other = (node for node in clustered.nodes if node is not leader)
    before = clustered.seats()
    lost.kill()
    shutil.rmtree(lost.data)
    lost.start()
    await until(lambda: clustered.seats()[lost.address] not in ("", before[lost.address]))
    await put(clustered, b"2")
    found = await clustered.until(lost, lambda found: found["case"] == "voter")
    assert found["epoch"] == 3
    assert {each["name"]: each["placement_id"] for each in found["voters"]} == clustered.seats()
    lost.stop()
    lost.port = free_port()  # with its new disk it may move, too
    lost.start()
    await clustered.until(other, lambda found: any(each["address"] == lost.address for each in found["voters"]))
    other.kill()
    await put(clustered, b"3")


async def test_members_are_added_and_removed_and_etcd_follows(clustered):
    """The new node has only etcd, the removed one leads, and a member that was added moves."""
    clustered.found()
    await put(clustered, b"1")
    leader = await clustered.leads()
    added = clustered.add()
    added.require_ready()
    await clustered.until(added, lambda found: found["case"] == "spare")
    name = added.address
    await leader.ask(Opcode.MEMBER_CHANGE, action="add", name=name)
    await until(lambda: clustered.seats().get(name))
    await clustered.until(added, lambda found: found["case"] == "voter" and found["learners"] == [])
    await put(clustered, b"2")
    added.stop()
    added.port = free_port()
    added.start()
    for node in clustered.nodes:
        await clustered.until(node, lambda found: any(each["address"] == added.address for each in found["voters"]))
    await put(clustered, b"3")

    await leader.ask(Opcode.MEMBER_CHANGE, action="remove", name=leader.address)
    await until(lambda: len(clustered.seats()) == 3)
    assert leader.address not in clustered.seats()
    clustered.nodes.remove(leader)
    await put(clustered, b"4")
    assert await clustered.leads() is not leader
    await until_logged(leader, f"{leader.address} is no member of its set")
    leader.stop()
    await until(lambda: len(leases(clustered)) == 3)
    for node in clustered.nodes:  # without the leader a majority of the last record that it knows has to be there
        await clustered.until_recorded(node, clustered.seats().values())
    lost = next(node for node in clustered.nodes if node is not added)
    lost.kill()
    await put(clustered, b"5")
    lost.start()
    await put(clustered, b"6")


async def test_an_etcd_that_is_restored_gets_the_new_disk_of_a_member_back(clustered):
    """The leader of then is gone, and the backup names the disk that was lost."""
    clustered.found()
    await put(clustered, b"1")
    clustered.etcd.stop()
    backup = clustered.folder / "backup"
    shutil.copytree(clustered.etcd.directory, backup)
    clustered.etcd.start().wait()
    leader = await clustered.leads()
    lost = next(node for node in clustered.nodes if node is not leader)
    before = clustered.seats()
    lost.kill()
    shutil.rmtree(lost.data)
    lost.start()
    await until(lambda: clustered.seats()[lost.address] not in ("", before[lost.address]))
    after = clustered.seats()
    for node in clustered.nodes:  # etcd may have the leader's record before a majority has stored it
        await clustered.until_recorded(node, after.values())
    clustered.etcd.stop()
    shutil.rmtree(clustered.etcd.directory)
    shutil.copytree(backup, clustered.etcd.directory)
    leader.kill()
    await put(clustered, b"2")
    clustered.etcd.start().wait()
    await until(lambda: clustered.seats() == after)
    leader.start()
    await put(clustered, b"3")
    for node in clustered.nodes:
        await clustered.until(node, lambda found: (found["state"], found["case"]) == ("connected", "voter"))
    assert clustered.seats() == after


async def test_a_leader_that_is_killed_is_gone_from_etcd_with_its_lease(clustered):
    clustered.found()
    leader = (await clustered.until(clustered.nodes[1], lambda found: found["leader"]))["leader"]
    [node] = [node for node in clustered.nodes if node.address == leader["address"]]
    [other, _] = [node for node in clustered.nodes if node.address != leader["address"]]
    told = clustered.values()["groups/0/leader"]
    node.kill()
    await clustered.until(other, lambda found: found["leader"] != leader)
    # A node that stands for leader tells so before it has written its key.
    await until(lambda: clustered.values().get("groups/0/leader") != told)


def leases(clustered):
    """The lease of each node's key, by the node's address. An answer without keys has no ``kvs``."""
    _, answer = clustered.etcd.ask("kv/range", prefix_range("/tailrace/demo/nodes/"))
    return {json.loads(base64.b64decode(each["value"]))["address"]: each["lease"] for each in answer.get("kvs", [])}


def record_of_leader_is_in(keys):
    """The leader writes its key first, and then its record of the voters."""
    return keys["groups/0/voters"]["term"] == keys["groups/0/leader"]["term"]


async def test_an_etcd_that_is_restored_from_an_old_backup_gets_what_has_changed_since(clustered):
    """The nodes find the old leader's key there, and an old address. Rows go on all the time."""
    clustered.found()
    await put(clustered, b"1")
    first = await clustered.leads()
    clustered.etcd.stop()
    backup = clustered.folder / "backup"
    shutil.copytree(clustered.etcd.directory, backup)
    clustered.etcd.start().wait()
    first.kill()
    await put(clustered, b"2")
    second = first
    while second is first:
        second = await clustered.leads()
    await until(lambda: record_of_leader_is_in(clustered.values()))
    keys = clustered.values()
    for number in range(100):  # so that the backup's revision is lower, whatever the nodes put first
        clustered.etcd.ask("kv/put", {"key": encode("/other"), "value": encode(b"%d" % number)})
    first.port = free_port()
    first.start()
    others = [node for node in clustered.nodes if node is not first]
    for node in others:
        await clustered.until(node, lambda found: any(e["address"] == first.address for e in found["voters"]))

    clustered.etcd.stop()
    shutil.rmtree(clustered.etcd.directory)
    shutil.copytree(backup, clustered.etcd.directory)
    await put(clustered, b"3")
    clustered.etcd.start().wait()
    await put(clustered, b"4")
    for node in clustered.nodes:
        found = await clustered.until(
            node,
            lambda found: (
                (found["state"], found["case"]) == ("connected", "voter")
                and found["leader"] == {"address": second.address, "term": keys["groups/0/leader"]["term"]}
                and all(each["registered"] for each in found["voters"])
                and any(each["address"] == first.address for each in found["voters"])
            ),
        )
        assert found["counts"]["went back"] == 1
        assert found["last_trouble"]["state"] == "restored"
        assert "went back from" in found["last_trouble"]["why"]
    again = clustered.values()
    for key in ("format", "groups/0/voters", "groups/0/leader"):
        assert again[key] == keys[key]
    await put(clustered, b"5")


async def test_leases_that_an_operator_revokes_are_replaced_and_rows_go_on(clustered):
    clustered.found()
    await put(clustered, b"1")
    leader, before = await clustered.leads(), leases(clustered)
    term = clustered.values()["groups/0/leader"]["term"]
    for lease in before.values():
        assert clustered.etcd.ask("lease/revoke", {"ID": lease})[0] == 200
    await put(clustered, b"2")
    for node in clustered.nodes:
        found = await clustered.until(
            node, lambda found: found["state"] == "connected" and found["counts"]["lease ended"]
        )
        assert found["last_trouble"]["state"] == "lease_lost"
        assert found["last_trouble"]["why"] == "etcd ended this node's lease early"
    await until(lambda: len(clustered.values()) == 6)
    assert await clustered.leads() is leader
    assert clustered.values()["groups/0/leader"]["term"] == term
    assert not set(leases(clustered).values()) & set(before.values())


async def test_a_node_whose_clock_jumps_beyond_its_lease_registers_again(clustered):
    """A paused machine: its clock has gone on meanwhile, and etcd has ended the lease."""
    clustered.found()
    await put(clustered, b"1")
    leader = await clustered.leads()
    node = next(node for node in clustered.nodes if node is not leader)
    node.pause()
    await until(lambda: node.address not in leases(clustered))
    await put(clustered, b"2")
    node.proceed()
    found = await clustered.until(
        node, lambda found: found["state"] == "connected" and found["counts"]["lease ended"] and found["leader"]
    )
    assert found["last_trouble"]["state"] in ("lease_lost", "slow", "unreachable")
    await until(lambda: node.address in leases(clustered))
    await put(clustered, b"3")


async def test_an_etcd_whose_answers_are_slow_is_told_and_holds_up_no_row(clustered):
    clustered.found()
    await put(clustered, b"1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slow_down, clustered.etcd)
        for node in clustered.nodes:
            found = await clustered.until(node, lambda found: found["state"] == "slow")
            assert "answered after" in found["why"]
            assert found["goes_on"] == "everything"
            await put(clustered, b"2")
        nursery.cancel_scope.cancel()
    for node in clustered.nodes:
        await clustered.until(node, lambda found: found["state"] == "connected")
    await until(lambda: len(leases(clustered)) == 3)


async def slow_down(etcd):
    """Answers come after 1.3 s, most of the time."""
    try:
        while True:
            etcd.signal(signal.SIGSTOP)
            await trio.sleep(1.3)
            etcd.signal(signal.SIGCONT)
            await trio.sleep(0.2)
    finally:
        etcd.signal(signal.SIGCONT)


async def test_an_etcd_that_hangs_is_named_and_rows_and_failover_go_on(clustered):
    clustered.found()
    await put(clustered, b"1")
    leader = await clustered.leads()
    [node, other] = [node for node in clustered.nodes if node is not leader]
    clustered.etcd.signal(signal.SIGSTOP)
    found = await clustered.until(node, lambda found: found["state"] == "unreachable")
    assert "did not answer within 2 s" in found["why"]
    assert found["to_do"].startswith("start etcd again")
    leader.kill()
    await put(clustered, b"2")
    clustered.etcd.signal(signal.SIGCONT)
    for each in (node, other):
        await clustered.until(each, lambda found: found["state"] == "connected")
    leader.start()
    await until(lambda: len(leases(clustered)) == 3)


async def test_an_etcd_whose_clock_jumps_ends_all_leases_and_moves_no_leader(clustered):
    """It is paused until each node counts its lease as ended. Then it finds the ends of all leases in its past."""
    clustered.found()
    await put(clustered, b"1")
    leader = await clustered.leads()
    term, before = clustered.values()["groups/0/leader"]["term"], leases(clustered)
    clustered.etcd.signal(signal.SIGSTOP)
    for node in clustered.nodes:
        await clustered.until(node, lambda found: found["counts"]["lease ended"])
        await put(clustered, b"2")
    clustered.etcd.signal(signal.SIGCONT)
    for node in clustered.nodes:
        await clustered.until(node, lambda found: found["state"] == "connected")
    await until(lambda: len(leases(clustered)) == 3 and not set(leases(clustered).values()) & set(before.values()))
    await until(lambda: clustered.values().get("groups/0/leader", {}).get("term") == term)
    assert await clustered.leads() is leader
    await put(clustered, b"3")


async def test_a_watch_that_is_cut_off_finds_what_it_has_missed(clustered):
    async with open_proxy(("127.0.0.1", clustered.etcd.port)) as proxy:
        node = clustered.add(endpoint=f"127.0.0.1:{proxy.port}")
        clustered.add()
        clustered.add()
        for each in clustered.nodes:
            await trio.to_thread.run_sync(each.require_ready)
        await put(clustered, b"1")
        leader = await clustered.leads()
        moved = next(each for each in clustered.nodes[1:] if each is not leader)
        await clustered.until(node, lambda found: all(each["registered"] for each in found["voters"]))
        moved.stop()
        await clustered.until(node, lambda found: not all(each["registered"] for each in found["voters"]))
        proxy.forget()
        moved.port = free_port()
        await trio.to_thread.run_sync(moved.start)
        found = await clustered.until(
            node, lambda found: any(each["address"] == moved.address for each in found["voters"])
        )
        assert found["counts"]["watch lost"] or found["counts"]["no answer"]
        await put(clustered, b"2")


@pytest.mark.parametrize("kept", [0, 1])
async def test_voters_of_a_later_term_that_another_program_writes_are_replaced_by_the_leader(clustered, kept):
    """None of the voters is known, or one is: then the others have learnt the false record."""
    clustered.found()
    await put(clustered, b"1")
    before = clustered.seats()
    false = clustered.values()["groups/0/voters"]
    false["term"] += 5
    for number, voter in enumerate(false["voters"][kept:]):
        voter["placement_id"] = f"{number + 17:02x}" * 16
    value = {"key": encode("/tailrace/demo/groups/0/voters"), "value": encode(json.dumps(false))}
    assert clustered.etcd.ask("kv/put", value)[0] == 200
    await until(lambda: clustered.seats() == before)
    assert clustered.values()["groups/0/voters"]["replaces"] == [false["term"], false["epoch"]]
    for node in clustered.nodes:
        await clustered.until(node, lambda found: found["case"] == "voter")
    leader = await clustered.leads()
    await until_logged(leader, f"voters that no leader of this set has written, of term {false['term']}, epoch 1")
    lost = next(node for node in clustered.nodes if node is not leader)
    lost.kill()
    shutil.rmtree(lost.data)
    lost.start()
    await until(lambda: clustered.seats()[lost.address] not in ("", before[lost.address]))
    leader.kill()
    await put(clustered, b"2")
    leader.start()
    for node in clustered.nodes:
        await clustered.until(node, lambda found: found["case"] == "voter")
