"""Members come and go under writers, and each change is interrupted at each of its steps, with lists and with etcd."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import trio
from tests.tailrace_server.coordination.made_etcd import Etcd, require_etcd

import tailrace

from .changes import FEED, INTERRUPTIONS, WAITS, Change, Ledger, led, members_are
from .group import Group, start

SECONDS_MAX = 900.0
REPLACING = [WAITS, "the new disk", "has caught up", "is about to get it", " votes"]
ADDING = ["catches up", " votes"]
REMOVING = ["is to leave", "no member any more"]


@pytest.fixture
def etcd(tmp_path):
    require_etcd()
    etcd = Etcd(tmp_path / "etcd").start().wait()
    yield etcd
    etcd.stop()


@pytest.fixture
async def group(tmp_path, nursery, request):
    etcd = request.getfixturevalue("etcd") if request.param == "etcd" else None
    group = Group(tmp_path, 3, failover="auto", store=f"etcd://{etcd.endpoint}" if etcd else "")
    await group.connect(nursery)
    try:
        await group.start(group.nodes)
        yield group
        await group.stop()
    finally:
        group.end_at_once()


@pytest.fixture
async def ledger(group, nursery):
    """Rows that writers acknowledge while the test runs."""
    ledger, scope = Ledger(group.url), trio.CancelScope()

    async def write():
        with scope:
            await ledger.run()

    nursery.start_soon(write)
    with trio.fail_after(SECONDS_MAX):
        await ledger.goes_on()
        yield ledger
        scope.cancel()
        await ledger.require_on(group.nodes)


def interruptions_of(long):
    """Each interruption with each store: one pair as a long test, the others as soak tests."""
    pairs = itertools.product(("static", "etcd"), INTERRUPTIONS)
    cases = [pytest.param(*pair, marks=pytest.mark.long if pair == long else pytest.mark.soak) for pair in pairs]
    return pytest.mark.parametrize(("group", "interruption"), cases, indirect=["group"])


@interruptions_of(long=("etcd", "the leader killed"))
async def test_a_member_is_added_and_removed(group, ledger, interruption):
    await members_are(group, group.nodes)
    for step in ADDING:
        node = await group.add()
        await group.start([node])
        await Change(group, ledger, "add", node.member).run(step, interruption, node)
        await members_are(group, group.nodes)
        await ledger.goes_on()
    for step in REMOVING:
        # The leader first, and then one that follows.
        leader = await led(group)
        node = leader if step is REMOVING[0] else next(each for each in group.nodes if each is not leader)
        await Change(group, ledger, "remove", node.member).run(step, interruption, node)
        group.dismiss(node)
        await members_are(group, group.nodes)
        await ledger.goes_on()


@interruptions_of(long=("static", "the command killed"))
async def test_a_disk_is_replaced(group, ledger, interruption):
    for number, step in enumerate(REPLACING):
        await members_are(group, group.nodes)
        leader = await led(group)
        node = next(each for each in group.nodes if each is not leader)
        renewed = partial(renew, group, node, number)
        await Change(group, ledger, "replace", node.member).run_beside(renewed, step, interruption, node)
        await ledger.goes_on()


async def renew(group, node, number):
    """Gives a member an empty disk."""
    await group.kill(node)
    node.data.rename(node.data.with_name(f"old{number}"))
    await start(node)


@pytest.mark.long
@pytest.mark.parametrize("group", ["etcd"], indirect=True)
async def test_members_move_to_other_addresses(group, ledger):
    """A follower and then the leader; each is killed once more when it has come back. Old lists of clients still do."""
    for is_leader in (False, True):
        await members_are(group, group.nodes)
        leader = await led(group)
        node = next(each for each in group.nodes if (each is leader) is is_leader)
        await group.kill(node)
        await group.move(node)
        for _ in range(2):
            await start(node)
            await group.kill(node)
        await start(node)
        await members_are(group, group.nodes)
        await ledger.goes_on()
        async with tailrace.connect(group.url, retry_for=SECONDS_MAX) as client:
            await client.feed(FEED).get(b"0")
