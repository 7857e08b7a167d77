import contextlib
import errno
import itertools
import random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tailrace_server.made_directory import DATA, MadeDirectory, rows_of
from tests.tailrace_server.offline.damage import files_of, fill_at, journal_of, make_directory, segments_of
from tests.tiers import examples

import tailrace
from tailrace_server.config import Config, StorageConfig
from tailrace_server.directory import restored_marks as marks
from tailrace_server.directory.identity import BadDirectory, load
from tailrace_server.host.disk import RealDisk, read_file
from tailrace_server.host.randomness import SystemRandomness
from tailrace_server.journal import DirectoryInUse, JournalDamaged, lock_directory
from tailrace_server.manifest import ManifestDamaged
from tailrace_server.node.start import open_node
from tailrace_server.offline.backup import TRIES_MAX, BackupFailed, backup
from tailrace_server.offline.restore import restore
from tailrace_server.offline.verify import verify

TARGET, AGAIN = "/backup", "/again"


def state_of(node):
    """The latest value of each key, by feed."""
    return {(name, key): value for (name, _, _), (key, value) in rows_of(node).items()}


class Busy:
    """A node that goes on with everything that it does, a step at each call; ``states`` after each write."""

    def __init__(self, seed):
        self.rnd = random.Random(seed)
        self.made = MadeDirectory(journal_file_bytes_max=self.rnd.choice([1_000, 3_000, 50_000]))
        self.made.create("orders", 2)
        self.made.create("log", 1, "history")
        self.state = {}
        self.states = [{}]
        self.restarts = 0

    def write(self):
        name = self.rnd.choice(["orders", "orders", "log"])
        key = b"k%d" % self.rnd.randrange(12)
        value = b"v%d" % len(self.states) + bytes(self.rnd.choice([0, 100]))
        self.made.write(name, [(key, value)])
        self.state = {**self.state, (name, key): value}
        self.states.append(self.state)

    def step(self):
        choice = self.rnd.random()
        name = self.rnd.choice(["orders", "log"])
        if choice < 0.6:
            self.write()
        elif choice < 0.75:
            self.made.flush(name)
        elif choice < 0.85:
            self.made.flush_and_trim(name)
        elif choice < 0.95:
            self.made.fold(name)
        elif self.restarts < 3:
            self.restarts += 1
            if self.rnd.random() < 0.5:
                self.made.stop()  # else it was killed: `MemoryDisk.kill` would kill the backup as well
            self.made.start()

    def steps(self, count):
        for _ in range(count):
            self.step()


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(st.integers(0, 2**32), st.booleans())
def test_what_is_restored_is_a_prefix_and_has_all_that_was_there_before(seed, linked):
    busy = Busy(seed)
    busy.steps(busy.rnd.randrange(60))
    acknowledged = len(busy.states) - 1
    disk = busy.made.disk
    if not linked:
        disk.fail("link", errno.EXDEV, where=TARGET)  # it is on another file system

    def between(stage):
        busy.steps(busy.rnd.randrange(12))
        if not linked:
            disk.fail("link", errno.EXDEV, where=TARGET)  # it is on another file system

    taken = backup(disk, DATA, TARGET, 0, between=between)
    disk.before = None
    assert (taken.linked > 0) <= linked
    assert not disk.exists(f"{DATA}/backup.new")
    assert verify(disk, TARGET).problems == []
    busy.steps(20)
    restored = restore(disk, TARGET, AGAIN, busy.made.host.randomness)
    assert restored.files
    assert verify(disk, AGAIN).problems == []
    busy.made.config = Config(AGAIN, storage=busy.made.config.storage)
    node = busy.made.start_on(disk)
    node.check()
    found = state_of(node)
    assert found in busy.states[acknowledged:], "a state that it was in, not before the backup began"
    assert {p.log.term for p in node.feeds.partitions()} == {busy.made.host.clock.wall_us() // 1000}
    busy.made.config = Config(DATA, storage=busy.made.config.storage)
    busy.made.start()
    assert state_of(busy.made.node) == busy.state, "the original went on as if nothing had been"


STAGES = ["journal", "feeds", "journal again", "copy"]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("start_at", STAGES)
def test_a_node_starts_during_the_backup_of_a_stopped_one(start_at, clean):
    """What was acknowledged before is in the backup, and the node does not wait for its end."""
    busy = Busy(3)
    busy.steps(60)
    acknowledged = len(busy.states) - 1
    if clean:
        busy.made.stop()
    disk = busy.made.disk
    seen = []

    def between(stage):
        seen.append(stage)
        if stage == start_at and seen.count(stage) == 1:
            lock_directory(disk, DATA).close()
            busy.made.start()
            busy.steps(10)

    backup(disk, DATA, TARGET, 0, between=between)
    assert seen[-4:] == STAGES
    assert not any(disk.exists(f"{TARGET}/{name}") for name in ("CLEAN", "LOCK", "RESERVE"))
    assert verify(disk, TARGET).problems == []
    restore(disk, TARGET, AGAIN, busy.made.host.randomness)
    busy.made.config = Config(AGAIN, storage=busy.made.config.storage)
    assert state_of(busy.made.start_on(disk)) in busy.states[acknowledged:]


@pytest.mark.parametrize("is_done", [True, False])
def test_a_repair_during_the_backup_is_noticed(stopped, is_done):
    disk = stopped.disk.fork()

    def between(stage):
        if stage == "feeds" and not marks.is_restored(disk, DATA):
            marks.mark(disk, DATA, marks.RESTORED_NAME)
            if not is_done:
                marks.mark(disk, DATA, marks.REPAIRING_NAME)

    if is_done:
        assert backup(disk, DATA, TARGET, 0, between=between).tries == 2
    else:
        with pytest.raises(BadDirectory, match="tailrace repair"):
            backup(disk, DATA, TARGET, 0, between=between)
        assert not disk.exists(f"{TARGET}/BACKUP")


def test_segments_are_linked_and_the_journal_is_copied(stopped):
    disk = stopped.disk.fork()
    taken = backup(disk, DATA, TARGET, 0)
    for path in files_of(disk):
        copy = path.replace(DATA, TARGET)
        if disk.exists(copy):
            assert (disk.names_now[copy] is disk.names_now[path]) == path.endswith(".seg"), path
    assert taken.segments == taken.linked == len(segments_of(disk))


def test_copies_share_nothing(stopped):
    disk = stopped.disk.fork()
    taken = backup(disk, DATA, TARGET, 0, copies=True)
    assert taken.linked == 0
    assert taken.segments > 0
    restore(disk, TARGET, AGAIN, stopped.host.randomness, copies=True)
    assert len({inode.number for inode in disk.names_now.values()}) == len(disk.names_now)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_links_is_copied(stopped, code):
    disk = stopped.disk.fork()

    disk.fail("link", code)
    taken = backup(disk, DATA, TARGET, 0)
    assert taken.linked == 0
    assert verify(disk, TARGET).problems == []


def test_a_target_with_something_in_it_is_refused(stopped):
    disk = stopped.disk.fork()
    disk.make_directory(TARGET)
    disk.create(f"{TARGET}/x").close()
    with pytest.raises(BadDirectory, match="not empty"):
        backup(disk, DATA, TARGET, 0)
    marks.mark(disk, DATA, "BACKUP")
    with pytest.raises(BadDirectory, match="not empty"):
        restore(disk, DATA, TARGET, stopped.host.randomness)


@pytest.mark.slow
def test_an_interrupted_backup_is_no_backup(stopped, memory_disk):
    for crash_at in range(1_000):
        disk = stopped.disk.fork()
        disk.crash_at(crash_at)
        try:
            backup(disk, DATA, TARGET, 0)
        except memory_disk.Crashed:
            disk.cut_power(random.Random(crash_at))
            if disk.exists(f"{TARGET}/BACKUP"):
                assert verify(disk, TARGET).problems == [], "the mark is there when all is"
            else:
                with pytest.raises(BadDirectory, match="no finished backup"):
                    restore(disk, TARGET, AGAIN, stopped.host.randomness)
            assert verify(disk, DATA).problems == []
        else:
            return
    raise AssertionError("the backup has more steps than this test tries")


def test_an_interrupted_restore_is_not_served(stopped, memory_disk):
    disk = stopped.disk.fork()
    backup(disk, DATA, TARGET, 0)
    for crash_at in range(1_000):
        crashed = disk.fork()
        crashed.crash_at(crash_at)
        try:
            restore(crashed, TARGET, AGAIN, stopped.host.randomness)
        except memory_disk.Crashed:
            crashed.cut_power(random.Random(crash_at))
            marked = [name for name in ("RESTORED", "RESTORING") if marks.is_marked(crashed, AGAIN, name)]
            if marked == ["RESTORED"]:
                assert verify(crashed, AGAIN).problems == []
            elif not marked:
                assert not crashed.exists(AGAIN) or crashed.names(AGAIN) in ([], ["RESTORING.new"])
        else:
            return
    raise AssertionError("the restore has more steps than this test tries")


def test_restore_makes_another_node_of_the_same_cluster(stopped):
    disk = stopped.disk.fork()
    backup(disk, DATA, TARGET, 0)
    before = {path: bytes(inode.content.whole()) for path, inode in disk.names_now.items() if path.startswith(TARGET)}
    restore(disk, TARGET, AGAIN, stopped.host.randomness)
    old, new = load(disk, DATA), load(disk, AGAIN)
    assert new.cluster_id == old.cluster_id
    assert new.node_id != old.node_id
    assert new.placement_id != old.placement_id
    after = {path: bytes(inode.content.whole()) for path, inode in disk.names_now.items() if path.startswith(TARGET)}
    assert after == before


def test_damage_is_not_backed_up_without_a_word(stopped):
    disk = stopped.disk.fork()
    disk.flip(journal_of(disk)[-1], 8 * 200)
    with pytest.raises(JournalDamaged, match="tailrace verify"):
        backup(disk, DATA, TARGET, 0)
    disk = stopped.disk.fork()
    disk.remove(segments_of(disk)[0])
    with pytest.raises(ManifestDamaged, match="is missing"):
        backup(disk, DATA, TARGET, 0)


def test_a_node_that_changes_too_fast_is_told(stopped):
    disk = stopped.disk.fork()
    count = [0]

    def between(stage):
        if stage == "journal again":
            newest = journal_of(disk)[-1]
            data = read_file(disk, newest)
            disk.remove(newest)
            file = disk.create(newest)
            file.write_at(0, (data,), len(data))
            count[0] += 1

    with pytest.raises(BackupFailed, match="quieter time"):
        backup(disk, DATA, TARGET, 0, between=between)
    assert count[0] == TRIES_MAX


def test_a_half_repaired_directory_is_not_backed_up(stopped):
    disk = stopped.disk.fork()
    marks.mark(disk, DATA, marks.REPAIRING_NAME)
    with pytest.raises(BadDirectory, match="tailrace repair"):
        backup(disk, DATA, TARGET, 0)


def test_a_target_inside_of_the_directory_is_refused(stopped):
    disk = stopped.disk.fork()
    with pytest.raises(BadDirectory, match="lies in"):
        backup(disk, DATA, f"{DATA}/backup", 0)
    backup(disk, DATA, f"{DATA}-backup", 0)
    with pytest.raises(BadDirectory, match="lies in"):
        restore(disk, f"{DATA}-backup", f"{DATA}-backup/again", stopped.host.randomness)


def test_what_is_not_there_or_is_no_data_directory_has_no_backup(stopped):
    disk = stopped.disk.fork()
    with pytest.raises(FileNotFoundError):
        backup(disk, "/nowhere", TARGET, 0)
    with pytest.raises(BadDirectory, match="does not exist"):
        restore(disk, "/nowhere", AGAIN, stopped.host.randomness)
    disk.make_directory("/other")
    with pytest.raises(BadDirectory, match="no data directory"):
        backup(disk, "/other", TARGET, 0)
    assert not disk.exists(TARGET)
    assert disk.names("/other") == []


@pytest.mark.slow
@pytest.mark.parametrize("copies", [False, True])
def test_a_full_disk_leaves_nothing_that_looks_like_a_backup(stopped, copies):
    for number in itertools.count():
        disk = stopped.disk.fork()
        failed = fill_at(disk, number)
        with contextlib.suppress(OSError):
            backup(disk, DATA, TARGET, 0, copies=copies)
        if not failed:
            return
        assert not disk.exists(f"{TARGET}/BACKUP")
        assert not disk.exists(f"{DATA}/backup.new")
        disk.before = None
        assert verify(disk, DATA).problems == []


@pytest.mark.slow
def test_a_full_disk_leaves_nothing_that_looks_restored(stopped):
    disk = stopped.disk.fork()
    backup(disk, DATA, TARGET, 0)
    for number in itertools.count():
        full = disk.fork()
        failed = fill_at(full, number)
        with contextlib.suppress(OSError):
            restore(full, TARGET, AGAIN, stopped.host.randomness)
        if not failed:
            return
        assert marks.is_marked(full, AGAIN, "RESTORING") or not full.exists(AGAIN) or full.names(AGAIN) == []
        full.before = None
        assert verify(full, TARGET).problems == []


def test_two_backups_that_need_a_place_beside_the_data_do_not_meet(stopped):
    disk = stopped.disk.fork()
    lock = disk.lock(f"{DATA}/backup.lock")
    with pytest.raises(BackupFailed, match="another backup"):
        backup(disk, DATA, TARGET, 0, copies=True)
    lock.close()


def test_a_journal_file_whose_header_is_damaged_is_told(stopped):
    disk = stopped.disk.fork()
    disk.flip(journal_of(disk)[0], 8 * 4)
    with pytest.raises(JournalDamaged, match="tailrace verify"):
        backup(disk, DATA, TARGET, 0)


def test_a_directory_without_a_journal_has_a_backup(stopped):
    disk = stopped.disk.fork()
    for path in journal_of(disk):
        disk.remove(path)
    assert backup(disk, DATA, TARGET, 0).journal_bytes == 0
    assert restore(disk, TARGET, AGAIN, stopped.host.randomness).linked > 0


def test_an_older_file_of_the_journal_that_is_damaged_is_told():
    made = MadeDirectory(journal_file_bytes_max=1_000)
    made.create("orders", 2)
    for number in range(12):
        made.write("orders", [(b"k%d" % number, bytes(100))])
    made.stop()
    assert len(journal_of(made.disk)) > 2
    disk = made.disk.fork()
    disk.flip(journal_of(disk)[1], 8 * 300)
    with pytest.raises(JournalDamaged, match="tailrace verify"):
        backup(disk, DATA, TARGET, 0)
    disk = made.disk.fork()
    del disk.content(journal_of(disk)[1])[200:]
    with pytest.raises(BackupFailed, match="quieter time"):
        backup(disk, DATA, TARGET, 0)


def test_a_feed_that_is_dropped_meanwhile_is_not_in_the_backup():
    made = make_directory()
    disk, dropped = made.disk, []
    feed_id = made.node.feeds.named("log").info.feed_id.hex()

    def before(name, path):
        if name == "link" and feed_id in path and not dropped:
            dropped.append(path)
            made.drop("log")
            for file in [file for file in files_of(disk) if feed_id in file and not file.endswith(".seg")]:
                disk.names_now.pop(file)

    disk.before = before
    backup(disk, DATA, TARGET, 0)
    disk.before = None
    assert dropped
    assert verify(disk, TARGET).problems == []
    assert not any(feed_id in path and path.endswith(".seg") for path in disk.names_now if path.startswith(TARGET))


@pytest.mark.slow
async def test_a_backup_of_a_running_node_under_writes(tmp_path):
    """A writer, flushes, folds and trims go on; what is restored has all that was acknowledged before it began."""
    disk = RealDisk()
    storage = StorageConfig(
        segment_bytes=20_000,
        journal_file_bytes_max=50_000,
        journal_bytes_max=150_000,
        reserve_bytes=0,
        free_bytes_min=0,
    )
    data, target, again = (str(tmp_path / name) for name in ("data", "backup", "again"))
    acknowledged, sent = [], []

    async def write(feed, first_written):
        number = 0
        while True:
            rows = [tailrace.Put(b"%d" % (n % 500), b"%d" % n + bytes(200)) for n in range(number, number + 50)]
            sent.append(rows)
            await feed.write(rows)
            acknowledged.append(rows)
            number += 50
            if number == 5_000:
                first_written.set()

    async with (
        open_node(Config(data, listen=("127.0.0.1", 0), storage=storage)) as node,
        tailrace.connect(f"tailrace://127.0.0.1:{node.listening[1]}") as client,
        trio.open_nursery() as nursery,
    ):
        feed = await client.create_feed("orders", partitions=1)
        first_written = trio.Event()
        nursery.start_soon(write, feed, first_written)
        await first_written.wait()
        before = len(acknowledged)
        with pytest.raises(DirectoryInUse):
            verify(disk, data)
        taken = await trio.to_thread.run_sync(backup, disk, data, target, 0)
        assert taken.segments > 0
        nursery.cancel_scope.cancel()
    assert verify(disk, target).problems == []
    restore(disk, target, again, SystemRandomness())
    async with open_node(Config(again, listen=("127.0.0.1", 0), storage=storage)) as node:
        [_, partition] = node.feeds.partitions()
        count = partition.high_seq // 50
        assert partition.high_seq == 50 * count
        assert before <= count <= len(sent)
        state = {}
        for rows in sent[:count]:
            state |= {("orders", row.key): row.value for row in rows}
        assert state_of(node) == state
        assert partition.log.term > marks.RESTORED_TERMS  # it is the time
