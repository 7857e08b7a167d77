"""The plans of a fetch, against a node of files: what is fetched, what is taken over, what is refused."""

import contextlib
import errno
import itertools
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tailrace.copies.conftest import FEED, ClientOfOne, Feed, Fetcher, FileNode, Killed, segment_file
from tests.tiers import examples

from tailrace.copies.fetch import Exchange, FeedFetch
from tailrace.copies.layout import FeedCopy, decode_checkpoint
from tailrace.errors import BadCopy, BadSegment, ProtocolError, TailraceError, UnknownCheckpoint
from tailrace.model import Level
from tailrace.model.failover import FailoverLog
from tailrace.requests.plan import Call
from tailrace.wire.file_parts import PART_BYTES_MAX
from tailrace.wire.opcodes import Opcode


def checkpoint_in(fetcher, partition=0):
    with open(os.path.join(fetcher.path, str(partition), "CHECKPOINT.json"), "rb") as file:
        return decode_checkpoint(file.read(), FEED, partition)


def test_a_feed_without_rows(fetcher):
    assert fetcher.fetch()[0].seq == 0
    fetcher.check_whole()
    assert not fetcher.node.kept


def test_a_fetch_takes_everything_and_the_next_one_only_what_is_new(fetcher, file_node):
    file_node.add(b"a" * 100)
    file_node.add(os.urandom(3 * PART_BYTES_MAX))
    first = fetcher.fetch()[0]
    fetcher.check_whole()
    assert first.fetched_bytes == first.nbytes
    assert (first.seq, first.segments, first.fetched_segments) == (20, 2, 2)
    assert fetcher.fetch()[0]._replace(fetched_bytes=0) == first._replace(fetched_bytes=0, fetched_segments=0)
    file_node.add(b"b" * 100)
    second = fetcher.fetch()[0]
    fetcher.check_whole()
    assert second.fetched_bytes == len(file_node.files[0][-1][1])
    assert (second.seq, second.fetched_segments) == (30, 1)
    assert not file_node.kept, "each checkpoint is released"


def test_nothing_is_written_if_nothing_is_new(fetcher, file_node):
    file_node.add()
    fetcher.fetch()
    before = os.stat(os.path.join(fetcher.path, "0", "CHECKPOINT.json"))
    fetcher.fetch()
    assert os.stat(os.path.join(fetcher.path, "0", "CHECKPOINT.json")).st_ino == before.st_ino


def test_what_was_compacted_is_replaced(fetcher, file_node):
    file_node.add(b"a")
    file_node.add(b"b")
    fetcher.fetch()
    file_node.compact()
    assert fetcher.fetch()[0].segments == 1
    fetcher.check_whole()


def test_a_compaction_during_the_fetch_changes_nothing(fetcher, file_node):
    """The node keeps the files of the checkpoint."""
    file_node.add(b"a" * 100)
    file_node.add(b"b" * 100)
    fetcher.before = lambda step: isinstance(step, Exchange) and len(file_node.files[0]) == 2 and file_node.compact()
    assert fetcher.fetch()[0].segments == 2
    fetcher.fetch()
    fetcher.check_whole()


def test_some_partitions_and_then_others(tmp_path, made):
    node, fetcher = made[0](4), None
    for partition in range(4):
        node.add(b"%d" % partition, partition=partition)
    fetcher = made[1](node, tmp_path / "copy")
    assert list(fetcher.fetch([2, 0, 2])) == [0, 2]
    with open(os.path.join(fetcher.path, "FEED.json"), "rb") as file:
        assert FeedCopy.decode(file.read()).fetched == (0, 2)
    assert list(fetcher.fetch([1])) == [1]
    with open(os.path.join(fetcher.path, "FEED.json"), "rb") as file:
        assert FeedCopy.decode(file.read()).fetched == (0, 1, 2)
    for partition in range(3):
        fetcher.check_whole(partition)


@pytest.mark.parametrize("partitions", [[4], [-1], []])
def test_partitions_that_are_not_there(fetcher, partitions):
    with pytest.raises(ValueError, match="partitions"):
        fetcher.fetch(partitions)
    assert not os.path.exists(fetcher.path)


# Nodes that forget, lag, or have another history


def test_a_node_that_restarts_is_asked_for_another_checkpoint(fetcher, file_node):
    file_node.add(os.urandom(5 * PART_BYTES_MAX))
    counter = itertools.count()

    def restart_sometimes(step):
        if isinstance(step, Exchange) and next(counter) in (1, 2):
            file_node.restart()

    fetcher.before = restart_sometimes
    fetched = fetcher.fetch()[0]
    fetcher.check_whole()
    assert file_node.calls.count(Opcode.SEGMENT_CHECKPOINT) == 3
    assert fetched.fetched_bytes < 1.5 * fetched.nbytes


def test_a_fetch_asks_as_one_copy_and_another_fetch_as_another(fetcher, file_node):
    file_node.add(b"a" * 1_000)
    fetcher.before = lambda step: file_node.kept.clear() if isinstance(step, Exchange) else None
    for _ in range(2):
        with pytest.raises(UnknownCheckpoint):
            fetcher.fetch()
    first, second = file_node.askers[:3], file_node.askers[3:]
    assert len(first) == len(second) == 3
    assert len(set(first)) == len(set(second)) == 1
    assert set(first) != set(second)


def test_a_node_that_keeps_nothing_is_given_up(fetcher, file_node):
    file_node.add()
    fetcher.before = lambda step: isinstance(step, Exchange) and file_node.restart()
    with pytest.raises(UnknownCheckpoint):
        fetcher.fetch()
    assert fetcher.names() == []


def test_a_node_that_is_behind_changes_nothing(fetcher, file_node):
    file_node.add(b"a")
    file_node.add(b"b")
    fetcher.fetch()
    names = fetcher.names()
    file_node.files[0].pop()
    fetched = fetcher.fetch()[0]
    assert (fetched.is_behind, fetched.seq, fetcher.names()) == (True, 20, names)
    assert not file_node.kept


def test_a_rollback_is_followed_and_told(fetcher, file_node):
    file_node.add(b"a")
    file_node.add(b"lost")
    fetcher.fetch()
    file_node.files[0].pop()
    file_node.log = FailoverLog([(b"v" * 16, 2, 10), *file_node.log])
    file_node.add(b"of the new leader", rows=3)
    fetched = fetcher.fetch()[0]
    assert (fetched.rolled_back_to, fetched.seq) == (10, 13)
    fetcher.check_whole()
    assert checkpoint_in(fetcher).log == file_node.log


def test_another_history_is_refused(fetcher, file_node):
    file_node.add(b"a")
    fetcher.fetch()
    names = fetcher.names()
    file_node.log = FailoverLog([(b"x" * 16, 1, 0)])
    file_node.add(b"b")
    with pytest.raises(BadCopy, match="another history"):
        fetcher.fetch()
    assert fetcher.names() == names
    assert not file_node.kept


def test_a_checkpoint_of_another_partition_or_feed(fetcher, file_node, monkeypatch):
    file_node.add()
    answer = file_node.answer
    for changed in ({"partition": 1}, {"feed_id": bytes(16).hex()}):

        def answer_wrongly(call, changed=changed):
            value = answer(call)
            return value | changed if call.opcode is Opcode.SEGMENT_CHECKPOINT else value

        monkeypatch.setattr(file_node, "answer", answer_wrongly)
        with pytest.raises(ProtocolError, match="has told a checkpoint of partition"):
            fetcher.fetch()
    assert not os.path.exists(os.path.join(fetcher.path, "0"))


# Damage


def damage(file_node, change, times):
    """The first ``times`` answers are changed on their way."""
    parts, counter = file_node.parts, itertools.count()

    def changed_parts(exchange):
        if next(counter) < times:
            store = exchange.store
            exchange = exchange._replace(store=lambda number, data: store(number, memoryview(change(bytes(data)))))
        parts(exchange)

    file_node.parts = changed_parts


def flipped(data):
    return data[:-1] + bytes([data[-1] ^ 1])


def test_a_file_that_is_damaged_on_its_way_is_fetched_again(fetcher, file_node):
    file_node.add(b"a" * 1_000)
    file_node.add(b"b" * 1_000)
    damage(file_node, flipped, 1)
    fetched = fetcher.fetch()[0]
    fetcher.check_whole()
    assert fetched.fetched_segments == 2
    assert not file_node.reported, "the node's file is good"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (flipped, "does not end as"),
        (lambda data: b"\1" + data[1:], "checksum"),
        (lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2), "checksum"),
    ],
)
def test_a_file_that_is_always_damaged(fetcher, file_node, change, match):
    file_node.add(b"a" * 1_000)
    damage(file_node, change, 99)
    with pytest.raises(BadSegment, match=match):
        fetcher.fetch()
    assert fetcher.names() == [], "nothing is installed"
    assert file_node.reported == [file_node.files[0][0][0]]


@pytest.mark.parametrize(
    ("place", "match"),
    [
        ({"feed_id": bytes(16)}, "of the feed 00000000"),
        ({"partition": 2}, "of partition 2"),
        ({"segment_id": b"z" * 16}, "it is segment 7a7a"),
    ],
)
def test_a_file_of_another_feed_partition_or_segment(fetcher, file_node, place, match):
    file_node.add(b"a")
    [(segment_id, _, first, last)] = file_node.files[0]
    other = segment_file(**({"segment_id": segment_id, "body": b"a"} | place))
    file_node.files[0] = [(segment_id, other, first, last)]
    with pytest.raises(BadSegment, match=match):
        fetcher.fetch()
    assert fetcher.names() == []


def test_a_half_file_of_other_bytes_is_noticed_and_fetched_anew(fetcher, file_node):
    fetcher.fetch()
    file_node.add(b"a" * 1_000)
    [(segment_id, data, *_)] = file_node.files[0]
    with open(os.path.join(fetcher.path, "0", f"{segment_id.hex()}.seg.new"), "wb") as file:
        file.write(bytes(len(data) // 2))
    fetcher.fetch()
    fetcher.check_whole()


def test_bytes_behind_those_of_a_part_that_was_refused_for_now_wait_for_them(fetcher, file_node):
    file_node.piece_bytes = 1_000
    file_node.order = reversed
    file_node.add(os.urandom(2 * PART_BYTES_MAX))
    file_node.add(os.urandom(10_000))
    fetched = fetcher.fetch()[0]
    fetcher.check_whole()
    assert fetched.fetched_bytes == fetched.nbytes


def test_bytes_that_came_before_a_link_broke_stay(fetcher, file_node):
    """Of each exchange only the first 1,000 bytes arrive."""
    file_node.piece_bytes = 1_000
    file_node.add(os.urandom(20_000))
    parts = file_node.parts

    class Broken(TailraceError):
        pass

    def break_soon(exchange):
        pieces = itertools.count()

        def store(number, data):
            if next(pieces):
                raise Broken
            exchange.store(number, data)

        parts(exchange._replace(store=store))

    file_node.parts = break_soon
    for tries in range(1, 22):
        with contextlib.suppress(Broken):
            fetcher.fetch()
            break
        [name] = [name for name in fetcher.names() if name.endswith(".new")]
        assert os.path.getsize(os.path.join(fetcher.path, "0", name)) == 1_000 * tries
    fetcher.check_whole()


# Disks that fill up, and fetches that are killed


def test_a_disk_without_room_is_told_before_anything_is_fetched(fetcher, file_node, monkeypatch):
    file_node.add(bytes(10_000))
    real = os.statvfs(".")

    class Full:
        f_bavail, f_frsize = 1, 512

    monkeypatch.setattr(os, "statvfs", lambda path: Full)
    with pytest.raises(OSError, match="bytes are to be fetched") as raised:
        fetcher.fetch()
    assert raised.value.errno == errno.ENOSPC
    assert Opcode.SEGMENT_FETCH not in file_node.calls
    monkeypatch.setattr(os, "statvfs", lambda path: real)
    fetcher.fetch()
    fetcher.check_whole()


def test_the_halves_of_an_older_checkpoint_make_room(fetcher, file_node, monkeypatch):
    """And the files that the copy has stay, since it can be read at each moment."""
    file_node.add(b"a")
    fetcher.fetch()
    held = fetcher.names()
    file_node.add(os.urandom(100_000))
    file_node.piece_bytes, parts = 1_000, file_node.parts

    def break_half_way(exchange):
        pieces = itertools.count()

        def store(number, data):
            if next(pieces) == 50:
                raise TailraceError("the link of a test")
            exchange.store(number, data)

        parts(exchange._replace(store=store))

    with monkeypatch.context() as broken:
        broken.setattr(file_node, "parts", break_half_way)
        with pytest.raises(TailraceError):
            fetcher.fetch()
    [half] = [name for name in fetcher.names() if name.endswith(".new")]
    file_node.compact()
    nbytes, folder = len(file_node.files[0][0][1]), os.path.join(fetcher.path, "0")

    class JustRoom:
        f_frsize = 1

        @property
        def f_bavail(self):
            assert set(held) <= set(os.listdir(folder))
            halves = (name for name in os.listdir(folder) if name.endswith(".new"))
            return nbytes - sum(os.path.getsize(os.path.join(folder, name)) for name in halves)

    monkeypatch.setattr(os, "statvfs", lambda path: JustRoom())
    assert fetcher.fetch()[0].segments == 1
    fetcher.check_whole()
    assert half not in fetcher.names()


def test_partitions_that_are_fetched_together_need_room_together(tmp_path, monkeypatch):
    node = FileNode(partitions=2)
    for partition in range(2):
        node.add(bytes(10_000), partition=partition)
    fetcher = Fetcher(node, tmp_path / "copy")
    fetch = FeedFetch(ClientOfOne(fetcher.source), Feed(), fetcher.path, None, Level.DISK)
    fetcher.run(fetch.begin())

    class RoomForOne:
        f_bavail, f_frsize = 15, 1_000

    monkeypatch.setattr(os, "statvfs", lambda path: RoomForOne)
    refused = []

    def fetch_the_other_one(step):
        if isinstance(step, Exchange):
            fetcher.before = lambda step: None
            with pytest.raises(OSError, match="bytes are to be fetched") as raised:
                fetcher.run(fetch.partition(1))
            refused.append(raised.value.errno)

    fetcher.before = fetch_the_other_one
    fetcher.run(fetch.partition(0))
    assert refused == [errno.ENOSPC]
    fetcher.check_whole(0)
    assert fetcher.names(1) == []
    fetcher.run(fetch.partition(1))
    fetcher.check_whole(1)
    fetch.close()


@pytest.mark.parametrize("call", ["pwrite", "fsync", "replace"])
def test_a_disk_that_fills_up_during_the_fetch(fetcher, file_node, monkeypatch, call):
    file_node.add(b"a")
    fetcher.fetch()
    file_node.add(os.urandom(2 * PART_BYTES_MAX))
    before = checkpoint_in(fetcher)

    def refuse(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(OSError, match="No space") as raised:
            fetcher.fetch()
        assert call == "replace" or raised.value.filename.startswith(os.path.dirname(fetcher.path)), (
            "it says which disk is full"
        )
    assert checkpoint_in(fetcher) == before
    fetcher.fetch()
    fetcher.check_whole()


class Disk:
    """Kills the fetch before the call of the disk with this number."""

    CALLS = ("pwrite", "fsync", "replace", "unlink", "mkdir", "ftruncate")

    def __init__(self, monkeypatch, at):
        self._left = at
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, real):
        def call(*arguments, **named):
            self._left -= 1
            if self._left < 0:
                raise Killed
            return real(*arguments, **named)

        return call


def prepared(node):
    """Histories of a node in which each fetch has something to add, to replace and to remove."""
    node.add(b"a" * 2_000)
    node.add(b"b" * 2_000)
    yield
    node.compact()
    node.add(b"c" * 2_000)
    yield
    node.files[0].pop()
    node.log = FailoverLog([(b"v" * 16, 2, 20), *node.log])
    node.add(b"d" * 2_000)
    yield


def test_a_fetch_that_is_killed_before_any_call_of_the_disk_goes_on(tmp_path, made, monkeypatch):
    """At each moment the directory has the copy of before, whole, or the new one."""
    for at in itertools.count():
        node = FileNode()
        fetcher = made[1](node, tmp_path / f"copy {at}")
        is_killed = False
        copies = [None]
        for _ in prepared(node):
            with monkeypatch.context() as patched:
                Disk(patched, at)
                try:
                    fetcher.fetch()
                except Killed:
                    is_killed = True
            if os.path.exists(os.path.join(fetcher.path, "0", "CHECKPOINT.json")):
                copy = checkpoint_in(fetcher)
                names = fetcher.names()
                assert all(segment.file_name in names for segment in copy.segments)
                assert copy.seq in (copies[-1], node.files[0][-1][3])
            fetcher.fetch()
            fetcher.check_whole()
            copies.append(checkpoint_in(fetcher).seq)
        if not is_killed:
            break
    assert at > 10


STEPS = ("add", "compact", "fetch", "kill", "restart")


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "compact", "fetch", "kill", "restart"]), st.integers(0, 30)), max_size=20
    )
)
def test_any_order_of_flushes_compactions_kills_and_restarts_ends_in_a_whole_copy(tmp_path_factory, made, steps):
    node = FileNode()
    node.add(b"first")
    fetcher = made[1](node, tmp_path_factory.mktemp("copy") / "copy")
    for number, (step, at) in enumerate(steps):
        left = itertools.count(at, -1)

        def interrupt(made_step, step=step, left=left):
            if next(left) == 0 and step == "kill":
                raise Killed
            if step == "restart" and isinstance(made_step, Exchange | Call) and next(left) == 0:
                node.restart()

        if step == "add":
            node.add(b"%d" % number * at)
        elif step == "compact":
            node.compact(b"%d" % number)
        else:
            fetcher.before = interrupt
            with contextlib.suppress(Killed):
                fetcher.fetch()
            fetcher.before = lambda made_step: None
    fetcher.fetch()
    fetcher.check_whole()


def test_a_partition_begins_with_the_window_that_others_have_found(tmp_path, made):
    node = made[0](partitions=2)
    for partition in (0, 1):
        node.add(os.urandom(16 * PART_BYTES_MAX), partition=partition)
    fetcher, windows = made[1](node, tmp_path / "copy"), []
    fetcher.before = lambda step: (
        isinstance(step, Exchange) and windows.append(sum(nbytes for _, _, nbytes in step.parts) // PART_BYTES_MAX)
    )
    fetcher.fetch()
    fetcher.check_whole(0)
    fetcher.check_whole(1)
    assert windows == [1, 2, 4, 8, 1, 8, 8, 0]


def test_a_window_that_was_slow_ends_growth_and_one_that_was_fast_does_not_shrink_it(fetcher):
    fetch = FeedFetch(ClientOfOne(fetcher.source), Feed(), fetcher.path, None, Level.DISK)
    first = fetch.window_bytes
    for _ in range(3):
        fetch.windowed(fetch.window_bytes, 0.1)
    assert fetch.window_bytes == 8 * first
    fetch.windowed(first, 0.1)
    fetch.windowed(fetch.window_bytes, 1.0)
    assert fetch.window_bytes == 8 * first
    fetch.windowed(2 * first, 60.0)
    assert fetch.window_bytes == first // 2
    fetch.windowed(8 * first, 60.0)
    assert fetch.window_bytes == first // 2


def test_progress_comes_to_the_whole(fetcher, file_node):
    file_node.add(os.urandom(3 * PART_BYTES_MAX))
    seen = []
    fetch = FeedFetch(
        ClientOfOne(fetcher.source), Feed(), fetcher.path, None, Level.DISK, lambda *told: seen.append(told)
    )
    fetcher.run(fetch.begin())
    fetcher.run(fetch.partition(0))
    fetch.close()
    assert seen[-1][0] == seen[-1][1] == len(file_node.files[0][0][1])
    assert [received for received, _ in seen] == sorted(received for received, _ in seen)
