"""Writers wait while the write queues hold more than the node's bound."""

import trio
import trio.testing

from tailrace_server.state.memory import MemoryAccount


async def test_there_is_room_below_the_bound(autojump_clock):
    account = MemoryAccount(100)
    account.change(99)
    with trio.fail_after(1):
        await account.room()


async def test_who_comes_at_the_bound_waits_until_there_is_room(autojump_clock):
    account = MemoryAccount(100)
    account.change(100)
    through = []

    async def writer():
        await account.room()
        through.append(account.used)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer)
        nursery.start_soon(writer)
        await trio.testing.wait_all_tasks_blocked()
        account.change(5)
        account.change(-5)
        await trio.testing.wait_all_tasks_blocked()
        assert through == []
        account.change(-1)
        await trio.testing.wait_all_tasks_blocked()
        assert through == [99, 99]


def test_it_is_tight_from_half_of_the_bound_on():
    account = MemoryAccount(100)
    account.change(49)
    assert not account.is_tight
    account.change(1)
    assert account.is_tight
    assert not account.is_full


async def test_nobody_waits_where_nothing_will_ever_be_flushed(autojump_clock):
    account = MemoryAccount(100)
    account.change(100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(account.room)
        await trio.testing.wait_all_tasks_blocked()
        account.give_up("the disk is gone")
    account.set_stuck("")
    assert account.stuck == "the disk is gone"
    with trio.fail_after(1):
        await account.room()


async def test_nobody_waits_while_there_will_be_no_room(autojump_clock):
    """Who would have to wait is refused instead; who waits already goes on, to be refused."""
    account = MemoryAccount(100)
    account.change(100)
    assert account.must_wait
    through = []

    async def writer():
        await account.room()
        through.append(account.stuck)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer)
        await trio.testing.wait_all_tasks_blocked()
        account.set_stuck("the disk is full")
        await trio.testing.wait_all_tasks_blocked()
        assert through == ["the disk is full"]
        assert not account.must_wait
        assert account.is_full
        account.set_stuck("")
        assert account.must_wait
