"""Feeds that are made and dropped: the list of feeds says so, and the feeds follow it."""

import contextlib
import errno
import itertools

import pytest
from tests.fake_host import FakeClock, InlineWorkers, SeededRandomness
from tests.memory_disk import MemoryDisk, failure
from tests.tailrace_server.made_directory import DATA, MadeDirectory, rows_of

from tailrace.block import Block, encode_block
from tailrace.errors import Forbidden, NoSpace, TailraceError
from tailrace.model import FeedInfo
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace_server.config import Config
from tailrace_server.feeds.feed import SYSTEM_FEED_ID, SYSTEM_FEED_NAME, creation_to_bytes
from tailrace_server.journal import Journal, RecordKind
from tailrace_server.node.start import recover
from tailrace_server.partition.partition import Partition
from tailrace_server.partition.replica_apply import apply_block, follow_log
from tailrace_server.runtime.host import Host
from tailrace_server.upkeep.rollback import roll_back

U = FailoverLog([FailoverEntry(b"u" * 16, 1, 0)])


def listed(node):
    return {feed_id for feed_id, row in node.feeds._rows.read().items() if row.creation is not None}


def test_a_feed_is_listed_as_long_as_it_is_there():
    made = MadeDirectory()
    orders, log = made.create("orders"), made.create("log")
    assert listed(made.node) == {orders.info.feed_id, log.info.feed_id}
    made.drop("log")
    assert listed(made.node) == {orders.info.feed_id}
    assert made.node.feeds.named(SYSTEM_FEED_NAME) is made.node.feeds.of_id(SYSTEM_FEED_ID) is made.node.feeds.system
    assert [feed.info.name for feed in made.node.feeds] == ["orders"]
    with pytest.raises(Forbidden):
        made.node.feed_changes.drop(SYSTEM_FEED_ID)


def fill_for(disk, first, count):
    """Of the writes that come, those with the numbers from ``first`` on, so many, find a full disk."""
    writes = itertools.count()

    def before(call, path):
        if call == "write_at" and first <= next(writes) < first + count:
            raise failure(errno.ENOSPC, path)

    disk.before = before


def names(node):
    return [feed.info.name for feed in node.feeds]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("trims", [0, 2])
@pytest.mark.parametrize(("first", "count"), [(first, count) for first in range(3) for count in range(1, 5)])
def test_a_drop_has_failed_or_not_now_and_after_a_restart(first, count, trims, flushed, clean):
    """Whichever writes find a full disk: what the client was told is what becomes of the feed, and of later rows."""
    made = MadeDirectory()
    made.create("kept")
    orders = made.create("orders")
    made.write("orders", [(b"a", b"1"), (b"b", b"2")])
    if flushed:
        made.flush_and_trim("orders")
    fill_for(made.disk, first, count)
    try:
        made.drop("orders")
        is_dropped = True
    except NoSpace:
        is_dropped = False
    assert ("orders" not in names(made.node)) == is_dropped
    for _ in range(trims):
        with contextlib.suppress(NoSpace):
            made.trim()
    made.disk.before = None
    made.write("kept" if is_dropped else "orders", [(b"c%d" % number, b"3") for number in range(100)])
    rows = dict(made.rows)
    for _ in range(2):
        if clean:
            made.stop()
        else:
            made.kill()
        made.start()
        assert names(made.node) == (["kept"] if is_dropped else ["kept", "orders"])
        assert rows_of(made.node) == rows
        made.trim()
    if is_dropped:
        assert not made.disk.exists(f"{DATA}/feeds/{orders.info.feed_id.hex()}")


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("first", "count"), [(first, count) for first in range(3) for count in range(1, 4)])
def test_a_creation_has_failed_or_not_now_and_after_a_restart(first, count, clean):
    made = MadeDirectory()
    fill_for(made.disk, first, count)
    try:
        made.create("orders")
        is_made = True
    except NoSpace:
        is_made = False
    made.disk.before = None
    assert names(made.node) == (["orders"] if is_made else [])
    made.trim()
    made.create("log")
    again = made.create("orders")
    made.write("orders", [(b"a", b"1")])
    for _ in range(2):
        if clean:
            made.stop()
        else:
            made.kill()
        made.start()
        assert names(made.node) == ["log", "orders"]
        assert made.node.feeds.named("orders").info == again.info
        assert listed(made.node) == {feed.info.feed_id for feed in made.node.feeds}
        assert rows_of(made.node) == made.rows


@pytest.mark.parametrize("first", range(3))
def test_a_creation_that_meets_a_journal_that_fails_leaves_no_feed(first):
    """Of a creation that was refused nothing is there to be written to."""
    made = MadeDirectory()
    made.create("kept")
    writes = itertools.count()

    def before(call, path):
        if call in ("write_at", "truncate") and next(writes) >= first:
            raise failure(errno.EIO, path)

    made.disk.before = before
    with contextlib.suppress(TailraceError):
        made.create("orders")
    made.disk.before = None
    is_there = first == 2
    assert names(made.node) == ["kept", "orders"][: 1 + is_there]
    made.kill()
    assert "kept" in names(made.start())


def test_a_directory_from_before_gets_rows_for_its_feeds(monkeypatch):
    made = MadeDirectory()
    with monkeypatch.context() as before:
        before.setattr(made.node.feeds, "write_rows", lambda *arguments, **others: None)
        orders = made.create("orders")
    assert listed(made.node) == set()
    made.kill()
    node = made.start()
    assert listed(node) == {orders.info.feed_id}
    made.kill()
    assert [feed.info for feed in made.start().feeds] == [orders.info]


class Follower:
    """A node that follows, and is told of feeds by rows."""

    def __init__(self):
        self.disk = MemoryDisk()
        self.disk.make_directory(DATA)
        self.host = Host(
            clock=FakeClock(), randomness=SeededRandomness(), disk=self.disk, workers=InlineWorkers(self.disk)
        )
        self.start()
        follow_log(self.partition, U, self.node.storage.journal)

    def start(self):
        self.node = recover(Config(DATA, replica_of=("leader", 1)), self.host)
        [self.partition] = self.node.feeds.system.partitions

    def row(self, name, *, drops=False):
        feed_id = name.encode().ljust(16, b".")
        info = FeedInfo(name, feed_id, 2, "hash", "compact", None, None, 259_200, "stream")
        value = None if drops else creation_to_bytes(info, b"b" * 16)
        block = encode_block([feed_id], [value], partition=0).stamped(self.partition.high_seq + 1, 1_000)
        apply_block(self.partition, block, self.node.storage.journal, 0.0)
        self.node.storage.journal.sync()
        self.partition.durable_through(self.partition.high_seq)

    def names(self):
        return [feed.info.name for feed in self.node.feeds]


def test_a_follower_makes_the_feeds_that_are_listed_on_the_branch_that_the_row_names():
    follower = Follower()
    follower.row("orders")
    dropped, [feed] = follower.node.feed_changes.reconcile()
    assert (dropped, follower.names()) == ([], ["orders"])
    assert feed.partitions[0].log == FailoverLog([FailoverEntry(b"b" * 16, 1, 0)])
    assert follower.node.feed_changes.reconcile() == ([], [])


def test_a_row_costs_its_own_feed_and_no_other(monkeypatch):
    """With ten thousand feeds, a look at each for each new one took a follower more time than all else."""
    follower, touched = Follower(), []
    list_at = Partition.list_at

    def noted(partition, seq):
        touched.append(partition.feed_id)
        list_at(partition, seq)

    for number in range(50):
        follower.row(f"feed-{number}")
    follower.node.feed_changes.reconcile()
    monkeypatch.setattr(Partition, "list_at", noted)
    follower.row("new")
    follower.node.feed_changes.reconcile()
    assert set(touched) == {follower.node.feeds.named("new").info.feed_id}
    follower.partition.set_leader_seqs(51, 51)
    touched.clear()
    follower.row("feed-7", drops=True)
    follower.node.feed_changes.reconcile()
    follower.partition.set_leader_seqs(52, 52)
    assert not touched
    assert len(follower.names()) == 50
    follower.node.feed_changes.reconcile()
    assert not follower.node.feeds._rows.unsettled


def test_feeds_are_made_and_dropped_some_at_a_time():
    follower = Follower()
    changes, feeds = follower.node.feed_changes, follower.node.feeds
    for number in range(10):
        follower.row(f"feed-{number}")
    seq = follower.partition.high_seq
    for made in (4, 8, 10):
        assert not feeds.lists_through(seq)
        changes.reconcile(most=4)
        assert len(feeds) == made
        assert feeds.has_more == (made < 10)
    assert feeds.lists_through(seq)
    for number in range(10):
        follower.row(f"feed-{number}", drops=True)
    follower.partition.set_leader_seqs(20, 20)
    for left in (6, 2, 0):
        changes.reconcile(most=4)
        assert len(feeds) == left
        assert feeds.has_more == (left > 0)


def test_a_leader_reads_each_row_as_it_writes_it(monkeypatch):
    """Else the first call that needs the rows reads those of ten thousand feeds in one turn."""
    made, read = MadeDirectory(), []
    for number in range(20):
        made.create(f"feed-{number}")
    open_columns = Block.open_columns
    monkeypatch.setattr(Block, "open_columns", lambda block: read.append(block) or open_columns(block))
    assert not made.node.feeds.is_dropping(made.node.feeds.named("feed-7"))
    assert not read
    assert not made.node.feeds._rows.unsettled


def test_a_feed_that_is_made_before_the_disk_is_full_is_followed_as_well(monkeypatch):
    follower, heard = Follower(), []
    follower.node.feed_changes.subscribe(lambda dropped, created: heard.extend(created))
    follower.row("first")
    follower.row("second")
    append, room = Journal.append, iter([True])

    def append_one(journal, kind, *record):
        if kind is RecordKind.FEED_CREATED and not next(room, False):
            raise NoSpace("the disk is full")
        return append(journal, kind, *record)

    with monkeypatch.context() as full:
        full.setattr(Journal, "append", append_one)
        with pytest.raises(NoSpace):
            follower.node.feed_changes.reconcile()
    assert follower.names() == ["first"]
    assert {partition.state for partition in follower.node.feeds.partitions()} == {"follower"}
    follower.node.feed_changes.reconcile()
    assert follower.names() == ["first", "second"]
    assert [feed.info.name for feed in heard] == ["first", "second"], "also of the one whose creation was interrupted"


def test_who_subscribes_hears_of_each_change_of_feeds():
    made, heard = MadeDirectory(), []
    changed = made.node.feed_changes

    def note(dropped, created):
        heard.append(([feed.info.name for feed in dropped], [feed.info.name for feed in created], names(made.node)))

    changed.subscribe(note)
    made.create("orders")
    made.create("log")
    made.create("log")
    made.drop("orders")
    changed.reconcile()
    changed.unsubscribe(note)
    made.drop("log")
    assert heard == [
        ([], ["orders"], ["orders"]),
        ([], ["log"], ["log", "orders"]),
        (["orders"], [], ["log"]),
    ]

    follower, heard = Follower(), []
    follower.node.feed_changes.subscribe(lambda *changed: heard.append(follower.names()))
    follower.row("orders")
    follower.node.feed_changes.reconcile()
    follower.partition.set_leader_seqs(2, 2)
    follower.row("orders", drops=True)
    follower.node.feed_changes.reconcile()
    assert heard == [["orders"], []]


def test_what_a_crash_has_left_between_a_row_and_its_feed_is_made_good_by_the_start():
    follower = Follower()
    follower.row("orders")
    follower.disk.kill()
    follower.start()
    assert follower.names() == ["orders"]


def test_a_follower_drops_a_feed_only_when_that_cannot_be_lost_any_more():
    follower = Follower()
    follower.partition.needs_quorum = True
    follower.row("orders")
    follower.node.feed_changes.reconcile()
    follower.row("orders", drops=True)
    assert follower.node.feed_changes.reconcile() == ([], [])
    follower.partition.set_leader_seqs(2, 1)
    assert follower.names() == ["orders"], "a majority does not have it"
    follower.partition.set_leader_seqs(2, 2)
    assert follower.names() == []


async def test_a_feed_whose_row_was_rolled_back_goes_when_all_of_the_list_is_there():
    follower = Follower()
    follower.row("kept")
    follower.row("undone")
    follower.node.feed_changes.reconcile()
    follower.partition.set_leader_seqs(2, 2)
    await roll_back(follower.node.storage, follower.partition, 1, U, follower.node.leaderships.system.on_shortfall)
    follower.node.feed_changes.reconcile()
    assert follower.names() == ["kept", "undone"], "the leader may have more rows"
    follower.partition.set_leader_seqs(2, 1)
    assert follower.names() == ["kept", "undone"], "the leader has more rows"
    follower.row("new")
    follower.node.feed_changes.reconcile()
    assert follower.names() == ["kept", "new"]


async def test_a_feed_that_is_listed_again_while_its_files_are_removed_is_made_again():
    """A client repeats its CREATE_FEED, with the same id, at the next leader; the first row was rolled back here."""
    follower = Follower()
    follower.row("orders")
    follower.node.feed_changes.reconcile()
    follower.partition.set_leader_seqs(1, 1)
    await roll_back(follower.node.storage, follower.partition, 0, U, follower.node.leaderships.system.on_shortfall)
    follower.row("other")
    follower.partition.set_leader_seqs(1, 1)
    follower.node.feed_changes.reconcile()
    assert follower.names() == ["other"]
    follower.row("orders")
    follower.node.feed_changes.reconcile()
    assert follower.names() == ["other"], "the files of the first one are not removed yet"
    storage = follower.node.storage
    await storage.flusher._trimmer.trim()
    await storage.flusher.flush_all(follower.partition)
    await storage.flusher._trimmer.trim()
    assert follower.names() == ["orders", "other"]
    storage.journal.sync()
    await storage.flusher._trimmer.trim()
    follower.disk.kill()
    follower.start()
    assert follower.names() == ["orders", "other"]
