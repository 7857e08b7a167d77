"""Members are added to a set and removed from it: the refusals alone, and with real nodes."""

import contextlib
import dataclasses
from functools import partial

import pytest
from tests.tailrace_server.replication.made_set import MadeNode, free_addresses, make_config, numbered, put, until

import tailrace
from tailrace.cli.errors import CommandFailed
from tailrace.cli.member_change import _change
from tailrace.cli.member_rows import rows_of
from tailrace.cli.options import target
from tailrace.errors import Forbidden, NotLeader
from tailrace.link.address import Address
from tailrace.wire.opcodes import Opcode
from tailrace_server.node.clustered import _leading
from tailrace_server.replication.election import MemberState
from tailrace_server.replication.member_changes import ChangeAction, intended, is_done, why_no_newcomer, why_not
from tailrace_server.replication.voters import SEATS_MAX, VACANT, Voters

ADD, REMOVE = ChangeAction.ADD, ChangeAction.REMOVE
A, B, C, D = (letter * 16 for letter in (b"a", b"b", b"c", b"d"))
FOUR = Voters(3, 4, (A, B, C, D), ("a:1", "b:2", "c:3", "d:4"))


def test_a_change_begins_once():
    adding = intended(FOUR, ADD, "e:5")
    assert adding == FOUR.with_joining("e:5")
    assert intended(adding, ADD, "e:5") == adding
    assert not is_done(adding, ADD, "e:5")
    assert is_done(adding.with_seat(4, b"e" * 16), ADD, "e:5")
    removing = intended(FOUR, REMOVE, "d:4")
    assert removing == FOUR.with_leaving("d:4")
    assert intended(removing, REMOVE, "d:4") == removing
    assert not is_done(removing, REMOVE, "d:4")
    assert is_done(removing.without("d:4"), REMOVE, "d:4")
    assert intended(FOUR, REMOVE, "x:1") == FOUR
    assert intended(adding, REMOVE, "e:5").members == FOUR.members


def test_no_fewer_than_three_members_and_no_fewer_voters_than_a_majority_are_left():
    everyone = {A, B, C, D}
    assert not why_not(FOUR, REMOVE, "d:4", everyone)
    assert "1 of the 2 voters answer" in why_not(FOUR, REMOVE, "d:4", {A, D})
    assert not why_not(FOUR, REMOVE, "d:4", {A, D}, is_forced=True)
    leaving = FOUR.with_leaving("c:3")
    assert "has 2 members, which do not stand the loss of one" in why_not(leaving, REMOVE, "d:4", everyone)
    assert not why_not(leaving, REMOVE, "d:4", everyone, is_forced=True)
    two = FOUR.without("a:1").without("b:2")
    assert "a set has 2 at least" in why_not(two, REMOVE, "d:4", {C, D}, is_forced=True)
    assert not why_not(FOUR, REMOVE, "x:1", everyone)


def test_a_member_that_is_to_leave_or_one_too_many_is_not_added():
    assert "is to leave this set" in why_not(FOUR.with_leaving("d:4"), ADD, "d:4", ())
    full = FOUR._replace(joining=tuple(f"m:{number}" for number in range(1, SEATS_MAX - 3)))
    assert "at most" in why_not(full, ADD, "e:5", ())
    assert not why_not(FOUR, ADD, "e:5", ())


def test_a_newcomer_names_itself_and_is_of_no_other_cluster():
    ours, theirs = b"o" * 16, b"t" * 16
    new = MemberState(D, theirs, is_new=True, members=("a:1", "d:4"))
    assert not why_no_newcomer(ours, "d:4", new)
    assert "outside of a set" in why_no_newcomer(ours, "d:4", new._replace(members=()))
    assert "none of its own members" in why_no_newcomer(ours, "e:5", new)
    assert "is of another cluster" in why_no_newcomer(ours, "d:4", new._replace(is_new=False))
    assert not why_no_newcomer(ours, "d:4", new._replace(is_new=False, cluster_id=ours))
    removed = new._replace(is_new=False, cluster_id=ours, members=("a:1", "b:2"))
    assert not why_no_newcomer(ours, "d:4", removed)


# With nodes


def record(node):
    return node.member.local.file.now.voters


def names(nodes):
    return tuple(str(node.address) for node in nodes)


async def change(nodes, action, node, **options):
    """Asks whoever leads for a change."""
    while True:
        leader = await nodes.settled()
        try:
            return await leader.ask(Opcode.MEMBER_CHANGE, action=action, name=str(node.address), **options)
        except NotLeader:
            continue


def newcomer(nodes, tmp_path, nursery, name="new"):
    [address] = free_addresses(1)
    members = (*(node.address for node in nodes), address)
    return MadeNode(make_config(tmp_path / name, address, members=members), nursery)


async def added(nodes, tmp_path, nursery, name="new"):
    """Adds a new node, and returns it once it votes and all know that."""
    node = newcomer(nodes, tmp_path, nursery, name)
    await node.start()
    await change(nodes, "add", node)
    nodes.nodes.append(node)
    await until(lambda: node.member.local.votes)
    await until(lambda: all(record(each) == record(node) for each in nodes))
    return node


async def removed(nodes, node):
    """Removes a node, and returns once it and all others know that."""
    await change(nodes, "remove", node)
    await until(lambda: all(str(node.address) not in record(each).members for each in nodes if each.is_up))
    nodes.nodes.remove(node)


async def test_a_set_grows_to_five_and_shrinks_to_three_by_its_leaders(members, tmp_path, nursery):
    async with members.client() as client:
        rows = numbered(0, 20)
        await members.filled(client, rows, partitions=2)
        for number in range(2):
            await added(members, tmp_path, nursery, f"new {number}")
            rows |= numbered(100 + 20 * number, 20)
            await put(client.feed("orders"), rows)
        await members.level("orders")
        assert record(members[0]).names == names(members)
        assert VACANT not in record(members[0]).seats
        for _ in range(2):
            leader = await members.settled()
            await removed(members, leader)
            assert not leader.leads
            assert "is no member of its set" in leader.member.progress
            assert not leader.member.local.votes
            rows |= numbered(200 + 20 * len(members.nodes), 20)
            await put(client.feed("orders"), rows)
        await members.level("orders")
        assert all(record(node).names == names(members) for node in members)
        assert all(node.rows("orders") == rows for node in members)


async def test_a_node_that_is_not_added_waits_and_does_not_lead(members, tmp_path, nursery):
    async with members.client() as client:
        await members.filled(client, numbered(0, 5))
        node = newcomer(members, tmp_path, nursery)
        await node.start()
        await until(lambda: "is no member yet" in node.member.progress)
        assert f"tailrace member add {node.address}" in node.member.progress
        for force in (False, True):
            with pytest.raises(NotLeader, match="is no member yet"):
                await node.promote(force=force)
        status = node.node.status()
        assert status["failure"].startswith(f"{node.address} is no member yet")
        forecast = status["replication"]
        assert (forecast["promotion_case"], forecast["promotion_succeeds"]) == ("refused", False)
        assert "is no member yet" in forecast["promotion"]
        with pytest.raises(CommandFailed, match=f"{node.address} is no member yet"):
            rows_of(status)
        assert await change(members, "add", node) == await change(members, "add", node)
        await until(lambda: node.member.local.votes)


async def test_a_node_whose_list_is_older_than_the_leader_joins(members, tmp_path, nursery):
    """It was started before the leader was added itself, so it asks the leader only if the others name it."""
    early = newcomer(members, tmp_path, nursery, "early")
    await early.start()
    late = await added(members, tmp_path, nursery, "late")
    while not late.leads:
        leader = await members.settled()
        with contextlib.suppress(NotLeader):  # it follows again since it has a seat
            await leader.hand_over(late)
    await change(members, "add", early)
    members.nodes.append(early)
    await until(lambda: early.member.local.votes)
    await until(lambda: all(record(each) == record(early) for each in members))


async def test_a_removed_member_that_comes_back_does_nothing_until_it_is_added_again(members, tmp_path, nursery):
    async with members.client() as client:
        rows = numbered(0, 5)
        await members.filled(client, rows)
        leader = await members.settled()
        gone = next(node for node in members if node is not leader)
        await added(members, tmp_path, nursery)
        await gone.kill()
        await removed(members, gone)
        await put(client.feed("orders"), numbered(5, 5))
        await gone.start()
        await until(lambda: "is no member of its set" in gone.member.progress)
        with pytest.raises(NotLeader, match="is no member of its set"):
            await gone.promote(force=True)
        answer = await gone.ask(Opcode.PROMISE, term=50, address=str(leader.address), placement_id="00" * 16)
        assert not answer["promised"]
        assert leader.leads
        await change(members, "add", gone)
        members.nodes.append(gone)
        await until(lambda: gone.member.local.votes)
        await members.level("orders")
        assert gone.rows("orders") == rows | numbered(5, 5)


def says(node, text):
    return text in node.member.progress


async def test_a_node_that_is_no_member_names_the_leader_to_clients(members, tmp_path, nursery):
    """Before it is added, and after it was removed; the leader is another one meanwhile."""
    async with members.client() as client:
        await members.filled(client, numbered(0, 5))
    node = newcomer(members, tmp_path, nursery)
    await node.start()
    for phase in ("is no member yet", "is no member of its set"):
        await until(partial(says, node, phase))
        async with tailrace.connect(node.url) as client:
            await client.feed("orders").put(phase.encode(), b"v", level="quorum")
        leader = await members.settled()
        with pytest.raises(NotLeader, match=phase) as caught:
            await node.ask(Opcode.CREATE_FEED, name="more", partitions=1)
        assert caught.value.leader == str(leader.address)
        await members[0 if leader is not members[0] else 1].promote()
        if phase == "is no member yet":
            await change(members, "add", node)
            await until(lambda: node.member.local.votes)
            await change(members, "remove", node)


async def test_a_coordinator_is_told_no_record_that_a_majority_has_not_stored(members):
    """A leader that is lost before that takes the record with it."""
    leader = await members.settled()
    await until(lambda: leader.member.seats.is_stored)
    assert _leading(leader.node).record.epoch == 1
    leader.member.seats.intend(record(leader).naming(names(members)).with_joining("x:1"))
    assert _leading(leader.node).record is None
    await until(lambda: leader.member.seats.is_stored)
    told = _leading(leader.node).record
    assert (told.epoch, told.learners) == (2, (Address("x", 1),))


async def test_a_command_that_is_over_ends_well_if_it_is_called_again(members, tmp_path, nursery, capsys):
    node = await added(members, tmp_path, nursery)
    members.nodes.remove(node)
    nodes = target("member add", str(members.url), None, None)
    await _change(nodes, "add", str(node.address), plan=False, force=False)
    assert capsys.readouterr().out == f"{node.address} is a member already: nothing to do\n"
    for end in ("is no member any more: stop it", "is no member: nothing to do"):
        await _change(nodes, "remove", str(node.address), plan=False, force=False)
        assert f"{node.address} {end}" in capsys.readouterr().out


async def verdict(members, capsys, action, node, *, force=False):
    """The last line of a plan."""
    await _change(target(f"member {action}", str(members.url), None, None), action, str(node.address), True, force)
    return capsys.readouterr().out.splitlines()[-1]


async def test_a_plan_says_what_the_leader_would_say_and_changes_nothing(members, tmp_path, nursery, capsys):
    leader = await members.settled()
    await until(lambda: leader.member.seats.is_stored)
    before = record(leader)
    node = newcomer(members, tmp_path, nursery)
    assert "Not now" in (told := await verdict(members, capsys, "add", node))
    assert f"{node.address} does not answer as a node" in told
    await node.start()
    await until(partial(says, node, "is no member yet"))
    assert await verdict(members, capsys, "add", node) == "It is safe now."
    alone = MadeNode(make_config(tmp_path / "alone", free_addresses(1)[0]), nursery)
    await alone.start()
    assert "is a node outside of a set" in await verdict(members, capsys, "add", alone)
    assert "do not stand the loss of one" in await verdict(members, capsys, "remove", members[2])
    assert await verdict(members, capsys, "remove", members[2], force=True) == "It is safe now."
    assert record(leader) == before


async def test_the_record_says_who_the_members_are_after_a_restart(members, tmp_path, nursery, caplog):
    async with members.client() as client:
        await members.filled(client, numbered(0, 5))
        await added(members, tmp_path, nursery)
        for node in members:
            await node.stop()
        await members.start()
        assert "is older and decides nothing: change --members" in caplog.text
        assert all(node.member.local.members == names(members) for node in members)
        await client.feed("orders").put(b"more", b"v", level="quorum")


async def test_a_list_that_a_coordinator_has_told_is_no_option_to_change(members, tmp_path, nursery, caplog):
    await added(members, tmp_path, nursery)
    node = members[1]
    await node.stop()
    node.config = dataclasses.replace(node.config, member_name=node.address)
    await node.start()
    assert node.member.local.members == names(members)
    assert "--members" not in caplog.text


@pytest.mark.parametrize("action", ["add", "remove"])
async def test_the_next_leader_goes_on(members, tmp_path, nursery, action):
    """The leader is lost right after the answer."""
    async with members.client() as client:
        await members.filled(client, numbered(0, 5))
        node = newcomer(members, tmp_path, nursery) if action == "add" else await added(members, tmp_path, nursery)
        if action == "add":
            await node.start()
        leader = await members.settled()
        await change(members, action, node)
        await leader.kill()
        left = [each for each in members if each is not leader and each is not node]
        await left[0].promote()
        await until(lambda: left[0].leads)
        await until(lambda: is_done(record(left[0]), ChangeAction(action), str(node.address)))
        await leader.start()
        await client.feed("orders").put(b"more", b"v", level="quorum")


async def test_what_is_no_node_or_no_change_is_refused(members, tmp_path, nursery):
    leader = await members.settled()
    [nowhere] = free_addresses(1)
    with pytest.raises(Forbidden, match="does not answer as a node"):
        await leader.ask(Opcode.MEMBER_CHANGE, action="add", name=str(nowhere))
    alone = MadeNode(make_config(tmp_path / "alone", nowhere), nursery)
    await alone.start()
    with pytest.raises(Forbidden, match="is a node outside of a set"):
        await leader.ask(Opcode.MEMBER_CHANGE, action="add", name=str(nowhere))
    with pytest.raises(Forbidden, match="do not stand the loss of one"):
        await change(members, "remove", members[2])
    follower = next(node for node in members if node is not leader)
    with pytest.raises(NotLeader):
        await follower.ask(Opcode.MEMBER_CHANGE, action="remove", name=str(Address("x", 1)))
    assert not record(leader).is_named


async def test_rows_are_at_quorum_on_a_majority_of_those_that_are_left(members, tmp_path, nursery):
    """With --force two members are left; the third is down."""
    async with members.client() as client:
        rows = numbered(0, 10)
        await members.filled(client, rows, partitions=3)
        leader = await members.settled()
        gone = next(node for node in members if node is not leader)
        await gone.kill()
        await change(members, "remove", gone, force=True)
        await until(lambda: len(record(leader).seats) == 2)
        members.nodes.remove(gone)
        await put(client.feed("orders"), numbered(10, 10))
        await members.level("orders")
        assert members[1].rows("orders") == rows | numbered(10, 10)
