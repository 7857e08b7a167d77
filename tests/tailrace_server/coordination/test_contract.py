"""The rules that every coordinator keeps: `StaticStore`, and `EtcdStore` with a real etcd."""

from __future__ import annotations

import functools

import pytest
import trio

from tailrace_server.coordination.coordinator import NO_ENTRY, LeaseGone, Put, Unchanged

pytestmark = pytest.mark.slow  # etcd is a process, and leases take seconds


def of_each_coordinator(test):
    """Runs ``test(store, prefix)`` with a coordinator of each kind."""

    @functools.wraps(test)
    async def run(coordinator):
        opened, prefix = coordinator
        async with opened as store:
            await test(store, prefix)

    del run.__wrapped__  # pytest would look for its parameters
    return run


@of_each_coordinator
async def test_a_key_that_is_not_there_has_no_value(store, prefix):
    assert await store.get(prefix + "a") == NO_ENTRY


@of_each_coordinator
async def test_a_value_comes_back_with_the_revision_of_its_change(store, prefix):
    assert await store.txn([], [Put(prefix + "a", b"1\x00\xff")])
    first = await store.get(prefix + "a")
    assert first.value == b"1\x00\xff"
    assert first.revision == first.created > 0
    assert await store.txn([], [Put(prefix + "a", b"2")])
    second = await store.get(prefix + "a")
    assert second.value == b"2"
    assert second.revision > first.revision == second.created


@of_each_coordinator
async def test_a_transaction_is_made_whole_or_not_at_all(store, prefix):
    a, b = prefix + "a", prefix + "b"
    assert await store.txn([Unchanged(a, 0), Unchanged(b, 0)], [Put(a, b"1"), Put(b, b"1")])
    then = (await store.get(a)).revision
    assert not await store.txn([Unchanged(a, then), Unchanged(b, 0)], [Put(a, b"2"), Put(b, b"2")])
    assert not await store.txn([Unchanged(a, 0)], [Put(a, b"2")])
    assert (await store.get(a)).value == (await store.get(b)).value == b"1"
    assert await store.txn([Unchanged(a, then), Unchanged(b, then)], [Put(a, None), Put(b, b"2")])
    assert await store.get(a) == NO_ENTRY
    assert (await store.get(b)).value == b"2"


@of_each_coordinator
async def test_one_of_several_compare_and_swaps_wins(store, prefix):
    won = []

    async def swap(number):
        if await store.txn([Unchanged(prefix + "a", 0)], [Put(prefix + "a", b"%d" % number)]):
            won.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(swap, number)
    [winner] = won
    assert (await store.get(prefix + "a")).value == b"%d" % winner


@of_each_coordinator
async def test_a_key_that_is_made_again_is_a_new_one(store, prefix):
    await store.txn([], [Put(prefix + "a", b"1")])
    first = await store.get(prefix + "a")
    await store.txn([], [Put(prefix + "a", None)])
    await store.txn([], [Put(prefix + "a", b"1")])
    again = await store.get(prefix + "a")
    assert again.created > first.created
    assert not await store.txn([Unchanged(prefix + "a", first.revision)], [Put(prefix + "a", b"2")])


@of_each_coordinator
async def test_a_watch_begins_with_all_keys_and_then_tells_changes(store, prefix):
    await store.txn([], [Put(prefix + "a", b"1"), Put(prefix[:-1] + "-other", b"x")])
    async with store.watch(prefix) as watch:
        view = await watch.next()
        assert {key: entry.value for key, entry in view.entries.items()} == {prefix + "a": b"1"}
        await store.txn([], [Put(prefix + "b", b"2"), Put(prefix + "a", None)])
        view = await watch.next()
        assert {key: entry.value for key, entry in view.entries.items()} == {prefix + "b": b"2"}
        assert view.entries[prefix + "b"] == await store.get(prefix + "b")


@of_each_coordinator
async def test_a_watch_of_nothing_begins_empty_and_waits(store, prefix):
    async with store.watch(prefix) as watch:
        assert not (await watch.next()).entries
        with trio.move_on_after(0.3) as scope:
            await watch.next()
        assert scope.cancelled_caught
        await store.txn([], [Put(prefix + "a", b"1")])
        assert (await watch.next()).entries[prefix + "a"].value == b"1"


@of_each_coordinator
async def test_no_change_is_lost_between_two_calls_of_a_watch(store, prefix):
    async with store.watch(prefix) as watch:
        await watch.next()
        for number in range(20):
            await store.txn([], [Put(prefix + "a", b"%d" % number)])
        while (await watch.next()).entries[prefix + "a"].value != b"19":
            pass


@of_each_coordinator
async def test_keys_go_with_their_lease(store, prefix):
    lease = await store.lease(60)
    await store.txn([], [Put(prefix + "a", b"1", lease.id), Put(prefix + "b", b"1")])
    async with store.watch(prefix) as watch:
        assert len((await watch.next()).entries) == 2
        await lease.revoke()
        assert set((await watch.next()).entries) == {prefix + "b"}
    await lease.revoke()  # again
    with pytest.raises(LeaseGone):
        await store.txn([], [Put(prefix + "c", b"1", lease.id), Put(prefix + "d", b"1")])
    assert await store.get(prefix + "d") == NO_ENTRY


@of_each_coordinator
async def test_a_key_of_a_newer_lease_outlives_the_earlier_one(store, prefix):
    first, second = await store.lease(60), await store.lease(60)
    await store.txn([], [Put(prefix + "a", b"1", first.id)])
    await store.txn([], [Put(prefix + "a", b"2", second.id)])
    await first.revoke()
    assert (await store.get(prefix + "a")).value == b"2"
    await store.txn([], [Put(prefix + "a", b"3")])
    await second.revoke()
    assert (await store.get(prefix + "a")).value == b"3"


@of_each_coordinator
async def test_a_lease_lasts_while_it_is_kept_and_no_longer(store, prefix):
    lease = await store.lease(2)
    await store.txn([], [Put(prefix + "a", b"1", lease.id)])
    async with store.watch(prefix) as watch:
        await watch.next()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lease.keep)
            await trio.sleep(4)
            assert (await store.get(prefix + "a")).value == b"1"
            nursery.cancel_scope.cancel()
        assert not (await watch.next()).entries
    assert await lease.keep()


@of_each_coordinator
async def test_keeping_a_lease_that_was_revoked_ends(store, prefix):
    lease = await store.lease(2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lease.revoke)
        assert await lease.keep()
