"""Groups: members share the partitions, and a partition moves with its last commit."""

import dataclasses

import pytest
import trio
from tests.tailrace.trio.test_named import fill, keys
from tests.tailrace_server.replication.made_set import until

import tailrace
from tailrace import Assigned, Mutations, NotOwner, Revoked, SnapshotEnd, SnapshotStart
from tailrace.model.position import Position
from tailrace.wire.consumer_messages import Change, Owned

ROWS = 200
LEASE_S = 3.0


@pytest.fixture
def lease_s():
    return LEASE_S


@pytest.fixture
def node_config(node_config, lease_s):
    return dataclasses.replace(node_config, limits=dataclasses.replace(node_config.limits, group_lease_s=lease_s))


class Member:
    """A program of a group in a task of its own. It commits after each event, and keeps the keys that it handled."""

    def __init__(self, feed, group="workers", *, since="beginning"):
        self.feed = feed
        self.options = {"group": group, "since": since}
        self.keys = []
        self.owned = set()
        self.lost = []
        self.stream = None
        self._is_committed = True
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        with self._scope:
            async with self.feed.consume(**self.options) as self.stream:
                task_status.started(self)
                async for event in self.stream:
                    self._is_committed = False
                    self.take(event)
                    await self.stream.commit()
                    self._is_committed = True
        self._ended.set()

    def take(self, event):
        match event:
            case Mutations():
                assert event.partition in self.owned
                self.keys += event.keys()
            case Assigned():
                self.owned.update(event.partitions)
            case Revoked():
                self.owned.difference_update(event.partitions)
                self.lost += event.partitions if event.lost else ()

    async def leave(self):
        """Ends it between two events: the node may not know of a commit that is cancelled. Its rows come again then."""
        await until(lambda: self._is_committed)
        self._scope.cancel()
        await self._ended.wait()


def handled(*members):
    return sorted(key for member in members for key in member.keys)


async def test_one_member_has_all_partitions(feed, nursery):
    await fill(feed, ROWS)
    member = await nursery.start(Member(feed).run)
    await until(lambda: handled(member) == keys(ROWS))
    assert member.owned == {0, 1, 2, 3}
    await member.leave()


async def test_members_share_and_nothing_comes_twice(feed, nursery):
    await fill(feed, ROWS)
    one = await nursery.start(Member(feed).run)
    await until(lambda: handled(one) == keys(ROWS))
    two = await nursery.start(Member(feed).run)
    await until(lambda: len(one.owned) == len(two.owned) == 2)
    assert not one.owned & two.owned
    await fill(feed, ROWS, first=ROWS)
    await until(lambda: len(one.keys) + len(two.keys) >= 2 * ROWS)
    assert handled(one, two) == keys(2 * ROWS)
    assert one.lost == two.lost == []
    await one.leave()
    await until(lambda: two.owned == {0, 1, 2, 3})
    await fill(feed, ROWS, first=2 * ROWS)
    await until(lambda: len(one.keys) + len(two.keys) >= 3 * ROWS)
    assert handled(one, two) == keys(3 * ROWS)
    await two.leave()


@pytest.mark.parametrize("lease_s", [300.0])
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_member_that_leaves_with_unread_events_frees_its_partitions_at_once(feed, is_cancelled):
    """A connection that is closed with unread bytes is reset, and the node has to know before."""
    await fill(feed, 20_000)
    for _ in range(3):
        with trio.CancelScope() as scope:
            async with feed.consume(group="workers") as one:
                while not isinstance(await one.next(), Mutations):
                    pass
                if is_cancelled:
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
        with trio.fail_after(100):  # far below the lease
            async with feed.consume(group="workers") as two:
                assert await two.next() == Assigned((0, 1, 2, 3))


async def test_a_later_start_goes_on_behind_the_last_commit(feed, nursery):
    await fill(feed, ROWS)
    member = await nursery.start(Member(feed).run)
    await until(lambda: handled(member) == keys(ROWS))
    await member.leave()
    await fill(feed, 5, first=ROWS)
    later = await nursery.start(Member(feed, since="now").run)
    await until(lambda: handled(later) == keys(5, ROWS))
    await later.leave()


async def test_given_positions_are_stored_before_a_partition_is_read_also_if_it_is_revoked_meanwhile(feed, nursery):
    await fill(feed, ROWS)
    async with feed.consume(until="now") as stream:
        async for _ in stream:
            pass
        given = stream.positions
    await fill(feed, ROWS, first=ROWS)
    one = await nursery.start(Member(feed, since=given).run)
    two = await nursery.start(Member(feed, since=given).run)
    await until(lambda: len(one.keys) + len(two.keys) >= ROWS and len(one.owned) == len(two.owned) == 2)
    assert handled(one, two) == keys(ROWS, ROWS)
    await one.leave()
    await two.leave()


async def test_more_members_than_partitions(feed, nursery):
    members = [await nursery.start(Member(feed).run) for _ in range(5)]
    await until(lambda: sum(len(member.owned) for member in members) == 4)
    idle = next(member for member in members if not member.owned)
    await idle.stream.barrier()
    busy = next(member for member in members if member.owned)
    await busy.leave()
    await until(lambda: len(idle.owned) == 1)
    for member in members:
        await member.leave()


async def test_a_broken_connection_moves_nothing(running, feed, nursery):
    one = await nursery.start(Member(feed).run)
    two = await nursery.start(Member(feed).run)
    await until(lambda: len(one.owned) == len(two.owned) == 2)
    before = set(one.owned), set(two.owned)
    for _ in range(3):
        running.cut_connections()
        await fill(feed, ROWS)
        await one.stream.barrier()
        await two.stream.barrier()
    assert (one.owned, two.owned) == before
    assert one.lost == two.lost == []


async def test_a_restart_of_the_node_moves_nothing(running, feed, nursery):
    await fill(feed, ROWS)
    one = await nursery.start(Member(feed).run)
    two = await nursery.start(Member(feed).run)
    await until(lambda: len(one.owned) == len(two.owned) == 2)
    before = set(one.owned), set(two.owned)
    await running.kill()
    await running.start()
    await fill(feed, ROWS, first=ROWS)
    await until(lambda: set(handled(one, two)) == set(keys(2 * ROWS)))
    assert (one.owned, two.owned) == before


class Cut:
    """Keeps a member from its node, as a network or a stop of the process does."""

    def __init__(self, member, monkeypatch):
        self.member = member
        self._patch = monkeypatch

    def begin(self):
        session = self.member.stream._session
        self._patch.setattr(session, "data_to_send", list)
        self._patch.setattr(session, "receive_data", lambda data: None)

    def end(self):
        self._patch.undo()
        self.member.stream._leave_node()


async def test_a_silent_member_loses_its_partitions_and_its_commits_are_refused(feed, nursery, monkeypatch):
    await fill(feed, ROWS)
    async with feed.consume(group="workers") as stream:
        silent = Member(feed)
        silent.stream = stream
        while len(silent.keys) != ROWS:
            silent.take(await anext(stream))
        assert silent.owned == {0, 1, 2, 3}
        two = await nursery.start(Member(feed).run)
        cut = Cut(silent, monkeypatch)
        cut.begin()
        await until(lambda: two.owned == {0, 1, 2, 3})
        await until(lambda: handled(two) == keys(ROWS))  # nothing was committed
        cut.end()
        with pytest.raises(NotOwner, match="not owned by this member"):
            await stream.commit()
        await fill(feed, ROWS, first=ROWS)
        await until(lambda: len(two.keys) >= 2 * ROWS - ROWS // 2)
        while not silent.lost:
            silent.take(await anext(stream))
        assert set(silent.lost) == {0, 1, 2, 3}
        while len(silent.owned) != 2:  # it is a member again
            silent.take(await anext(stream))
            await stream.commit()


async def test_a_member_hands_out_nothing_after_its_lease(feed, monkeypatch):
    await fill(feed, ROWS)
    async with feed.consume(group="workers") as stream:
        assert isinstance(await anext(stream), Assigned)
        cut = Cut(type("Holder", (), {"stream": stream}), monkeypatch)
        while not stream.has_event():
            await trio.sleep(0.005)
            stream._session.receive_data(await stream._transport.receive())
        cut.begin()
        with trio.move_on_after(1.2 * LEASE_S):
            await trio.sleep_forever()
        assert not stream.has_event()
        assert await stream.next(timeout=0) is None
        cut.end()
        assert await anext(stream) is not None


async def test_a_member_that_works_at_an_event_for_longer_than_its_lease_keeps_its_partitions(feed, nursery):
    """It reads no answer meanwhile. The event loop runs, so it shows that it is alive."""
    await fill(feed, ROWS)
    async with feed.consume(group="workers") as stream:
        assert await anext(stream) == Assigned((0, 1, 2, 3))
        while not isinstance(await anext(stream), Mutations):
            pass
        two = await nursery.start(Member(feed).run)
        with trio.move_on_after(2.5 * LEASE_S):
            await trio.sleep_forever()
        await stream.commit()
        assert two.owned == set()
        for _ in range(2 * ROWS):
            if isinstance(event := await anext(stream), tailrace.Revoked):
                break
        assert (len(event.partitions), event.lost) == (2, False)


async def test_partitions_that_come_back_at_once_are_owned(members, nursery):
    """A member joins and leaves: what another one releases for it comes back before the answer to the release."""
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=4)
        await _release_for_a_member_that_leaves(feed, nursery)


async def _release_for_a_member_that_leaves(feed, nursery):
    await fill(feed, ROWS)
    async with feed.consume(group="workers") as stream:
        member = Member(feed)
        while len(member.keys) != ROWS:
            member.take(await anext(stream))
        await stream.commit()
        two = await nursery.start(Member(feed).run)
        while not isinstance(event := await anext(stream), Revoked):
            member.take(event)
        await two.leave()
        member.take(event)
        while len(member.owned) != 4:  # the first step says that the revoked ones are finished
            member.take(await anext(stream))
        await fill(feed, ROWS, first=ROWS)
        while len(member.keys) < 2 * ROWS:
            member.take(await anext(stream))
        await stream.commit()
    await fill(feed, 1, first=2 * ROWS)
    later = await nursery.start(Member(feed).run)
    await until(lambda: later.keys)
    assert handled(later) == keys(1, 2 * ROWS)


@pytest.mark.parametrize("polls", [False, True])
async def test_an_event_of_a_lost_partition_leads_to_no_position(feed, polls):
    """The partition has come back behind what another member has committed, while the program was at the event."""
    await fill(feed, ROWS)
    async with feed.consume(group="workers") as stream:
        while not isinstance(
            event := (await stream.poll(max_rows=1))[-1] if polls else await anext(stream), Mutations | SnapshotEnd
        ):
            pass
        before = stream.latest_positions
        at = before[event.partition]
        later = before.with_position(event.partition, Position.at(at.log, at.seq + 5))
        lost, granted = Owned({}, None), Owned({event.partition: 9}, later)
        stream._session.receive_data(Change(lost, lost=(event.partition,)).encode(1))
        stream._session.receive_data(Change(granted).encode(1))
        assert stream.latest_positions[event.partition] == later[event.partition]
        while not isinstance(told := await anext(stream), Revoked):  # of other partitions there may be more
            assert getattr(told, "partition", None) != event.partition
        assert told == Revoked((event.partition,), lost=True)
        assert stream.latest_positions[event.partition] == later[event.partition]


async def test_a_loss_that_a_poll_has_told_refuses_no_later_commit(feed):
    await fill(feed, ROWS)
    async with feed.consume(group="workers") as stream:
        assert isinstance(await anext(stream), Assigned)
        while not stream.has_event():
            stream._session.receive_data(await stream._transport.receive())
            stream._send()
        first = stream._session._queue[0][1]
        lost = tuple({0, 1, 2, 3} - {first})
        stream._session.receive_data(Change(Owned({}, None), lost=lost).encode(1))
        with pytest.raises(NotOwner):
            await stream.commit()
        events = await stream.poll()
        assert isinstance(events[0], Mutations | SnapshotStart)
        assert events[-1] == Revoked(lost, lost=True)
        await stream.commit()


@pytest.mark.parametrize(
    "options", [{"name": "a"}, {"until": "now"}, {"partitions": [0]}, {"caught_up": True}, {"group": ""}]
)
async def test_what_has_no_meaning_in_a_group_is_refused(feed, options):
    with pytest.raises(ValueError, match="group"):
        feed.consume(**{"group": "workers"} | options)


async def test_groups_do_not_share(feed, nursery):
    await fill(feed, ROWS)
    one = await nursery.start(Member(feed, "one").run)
    two = await nursery.start(Member(feed, "two").run)
    await until(lambda: handled(one) == handled(two) == keys(ROWS))


async def test_status_tells_the_members(client, feed, nursery):
    await fill(feed, ROWS)
    one = await nursery.start(Member(feed).run)
    await nursery.start(Member(feed).run)
    await until(lambda: len(one.owned) == 2)
    await one.stream.barrier()
    [told] = (await client.status()).details["consumers"]
    assert (told["kind"], told["name"], told["partitions"]) == ("group", "workers", 4)
    assert len(told["members"]) == 2
    assert tailrace.__version__
