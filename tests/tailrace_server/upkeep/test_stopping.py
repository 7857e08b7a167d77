"""A node that stops while a task, which may not be cancelled, waits until everything is durable."""

import pytest
import trio
import trio.testing

from tailrace.errors import NotDurable


async def test_nothing_waits_for_a_committer_that_has_ended(engine, monkeypatch):
    """A follower makes a run a part of its partition in one step, which no cancellation ends."""
    storage = engine.node.storage
    monkeypatch.setattr(storage.committer, "_is_cheap", lambda: False)
    partition = engine.create()
    failures = []

    async def wait():
        with trio.CancelScope(shield=True):
            try:
                await storage.all_durable()
            except NotDurable as error:
                failures.append(str(error))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(storage.run)
            await trio.testing.wait_all_tasks_blocked()
            storage.on_turn_ended = nursery.cancel_scope.cancel
            engine.put(partition, (b"a", b"1"), sync=False)
            nursery.start_soon(wait)
    assert failures == ["the node is stopping"]
    with pytest.raises(NotDurable, match="the node is stopping"):
        await storage.all_durable()
