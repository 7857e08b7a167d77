import errno
import json
import random
import re

import pytest
from tests.tailrace_server.made_directory import DATA, rows_of
from tests.tailrace_server.offline.damage import (
    check_repaired,
    contents_of,
    files_of,
    journal_of,
    make_directory,
    repaired,
    segments_of,
)

from tailrace_server.coordination.coordinator import Put
from tailrace_server.coordination.static_store import StaticStore
from tailrace_server.directory.identity import BadDirectory, load
from tailrace_server.host.disk import read_file, write_atomically
from tailrace_server.journal import DirectoryInUse
from tailrace_server.manifest import FeedFile, codec
from tailrace_server.offline.verify import verify
from tailrace_server.replication.membership import Membership, MembershipFile

# What made_directory calls its feeds.
NAMES = "_feeds|orders|log"


def problems(disk):
    """The problems that verify finds. None of them names a feed by its id alone."""
    found = {(file.path, finding.offset): finding for file, finding in verify(disk, DATA).problems}
    for finding in found.values():
        for text in (finding.what, finding.means):
            without_names = re.sub(rf"\bfeed ({NAMES}) \([0-9a-f]{{32}}\)", "", text)
            assert not re.search("feed [0-9a-f]{32}", without_names), text
    return found


def test_a_good_directory_has_no_problem_and_is_not_changed(stopped):
    disk = stopped.disk.fork()
    before = contents_of(disk)
    report = verify(disk, DATA)
    assert report.problems == report.notes == []
    assert contents_of(disk) == before
    kinds = {kind: files for kind, files, _, _ in report.kinds()}
    assert kinds.keys() == {"node", "uptime", "mark", "lock", "journal", "feed", "manifest", "segment"}
    assert kinds["feed"] == 2
    assert kinds["manifest"] == 4  # that of the list of feeds among them
    assert report.summary()["ok"] is True
    assert [file.to_json()["state"] for file in report.files] == ["ok"] * len(report.files)
    paths = {f"{DATA}/{file.path}" for file in report.files}
    assert paths >= set(files_of(disk)), "every file is in the report"


def test_a_directory_of_a_killed_node_has_no_problem_either():
    made = make_directory()
    made.kill()
    assert verify(made.disk, DATA).problems == []


@pytest.mark.slow
def test_what_a_power_cut_leaves_is_no_problem():
    made = make_directory()
    for seed in range(30):
        disk = made.disk.fork()
        disk.cut_power(random.Random(seed))
        assert verify(disk, DATA).problems == []


@pytest.mark.slow
def test_every_flip_is_found_or_in_bytes_that_do_not_count(stopped):
    """Every kind of file, at places spread over it; a flip that is not found leaves all that is served as it was."""
    rows = rows_of(stopped.start_on(stopped.disk.fork()))
    rnd = random.Random(1)
    unseen = set()
    for path in files_of(stopped.disk):
        bits = 8 * stopped.disk.names_now[path].content.size
        for bit in {0, bits - 1, *(rnd.randrange(bits) for _ in range(12))}:
            disk = stopped.disk.fork()
            disk.flip(path, bit)
            if problems(disk):
                continue
            unseen.add(path)
            assert load(disk, DATA) == load(stopped.disk, DATA)
            node = stopped.start_on(disk)
            assert rows_of(node) == rows
            assert node.services.unclean_start is None
    assert unseen <= {f"{DATA}/NODE"}, "upper case hexadecimal digits, and spaces, mean the same"


def test_problems_name_the_file_the_place_and_what_they_mean(stopped):
    disk = stopped.disk.fork()
    segment = segments_of(disk)[0]
    disk.flip(segment, 8 * (64 + 96 + 3))
    found = problems(disk)
    place = segment.removeprefix(f"{DATA}/"), 64
    assert "checksum" in found[place].what
    assert "cannot be served" in found[place].means


def test_missing_files_are_found(stopped):
    for path in files_of(stopped.disk):
        disk = stopped.disk.fork()
        disk.remove(path)
        is_optional = path.endswith(("/UPTIME", "/CLEAN", "/HELD"))
        # The journal is trimmed at its beginning, and what its oldest file said may have its home elsewhere.
        is_oldest = path == journal_of(stopped.disk)[0]
        assert bool(problems(disk)) or is_optional or is_oldest, path


def test_an_unreadable_place_is_found(stopped):
    for path in files_of(stopped.disk):
        disk = stopped.disk.fork()

        def before(name, called, path=path):
            if name == "read_at" and called == path:
                raise OSError(errno.EIO, "Input/output error", called)

        disk.before = before
        assert any(file == path.removeprefix(f"{DATA}/") for file, _ in problems(disk)), path


def test_leftovers_are_notes(stopped):
    disk = stopped.disk.fork()
    directory = next(path for path in files_of(disk) if path.endswith("MANIFEST")).removesuffix("/MANIFEST")
    for path in (f"{directory}/x.new", f"{DATA}/journal/00000099.log.new", f"{DATA}/what"):
        disk.create(path).close()
    segment = segments_of(disk)[0]
    other = disk.create(f"{directory}/{'ab' * 16}.seg")
    other.write_at(0, (read_file(disk, segment),), len(read_file(disk, segment)))
    report = verify(disk, DATA)
    assert report.problems == []
    assert len(report.notes) == 4


def with_file(stopped, name, content):
    disk = stopped.disk.fork()
    write_atomically(disk, f"{DATA}/{name}", content)
    return disk


@pytest.fixture
def of_member(stopped):
    """The files of a member, by name, as a node writes them."""
    disk = stopped.disk.fork()
    MembershipFile(disk, DATA, b"p" * 16).store(Membership(term=7))
    StaticStore(disk, f"{DATA}/CLUSTER").write((), (Put("key", b"value"),))
    return {name: read_file(disk, f"{DATA}/{name}") for name in ("MEMBERSHIP", "CLUSTER")}


@pytest.mark.parametrize("name", ["MEMBERSHIP", "CLUSTER"])
def test_the_files_of_a_member_are_known(stopped, of_member, name):
    report = verify(with_file(stopped, name, of_member[name]), DATA)
    assert report.problems == report.notes == []
    assert [file.kind for file in report.files if file.path == name] == [name.lower()]


@pytest.mark.parametrize("name", ["MEMBERSHIP", "CLUSTER"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda value: {**value, "version": 9}, "has version 9; this program reads"),
        (lambda value: {**value, "checksum": "0" * 16}, r"is damaged \(its checksum is wrong\)"),
        (lambda value: {"version": 1}, r"is damaged \(its member 'checksum' is missing\)"),
    ],
)
def test_a_bad_file_of_a_member_is_a_problem(stopped, of_member, name, change, told):
    content = json.dumps(change(json.loads(of_member[name]))).encode()
    found = problems(with_file(stopped, name, content))
    assert found.keys() == {(name, None)}
    assert re.search(told, found[name, None].what)


def test_a_dropped_feed_is_a_note(stopped):
    disk = stopped.disk.fork()
    feed = next(path for path in files_of(disk) if path.endswith("FEED"))
    report = verify(disk, DATA)
    disk.rename(feed, f"{feed}.dropped")
    report = verify(disk, DATA)
    assert any("was dropped" in finding.what for _, finding in report.notes)


def test_two_feeds_of_one_name_are_a_problem(stopped):
    disk = stopped.disk.fork()
    node = stopped.start_on(disk)
    feed = node.feeds.named("log")
    info = feed.info._replace(feed_id=b"x" * 16)
    node.storage.store.write_feed(FeedFile(info, b"b" * 16))
    node.storage.journal.close()
    disk.kill()
    assert any("also has the name 'log'" in finding.what for finding in problems(disk).values())
    repaired(stopped, disk)
    names = {found.info.name for found in stopped.start_on(disk).feeds}
    assert {"log", "orders"} < names
    assert len(names) == 3


def test_a_directory_that_a_node_has_is_refused(stopped):
    disk = stopped.disk.fork()
    lock = disk.lock(f"{DATA}/LOCK")
    with pytest.raises(DirectoryInUse, match="stop it"):
        verify(disk, DATA)
    lock.close()
    verify(disk, DATA)


def test_what_is_no_data_directory_is_refused_and_left_alone(memory_disk):
    disk = memory_disk()
    disk.make_directory("/other")
    with pytest.raises(BadDirectory, match="no data directory"):
        verify(disk, "/other")
    assert disk.names("/other") == []


def test_a_journal_that_ends_before_the_mark_of_a_clean_stop_says_is_a_problem(stopped):
    disk = stopped.disk.fork()
    path = journal_of(disk)[-1]
    content = disk.content(path)
    del content[-8:]
    assert any("the journal ended at" in finding.what for _, finding in verify(disk, DATA).problems)
    outcome = repaired(stopped, disk)
    _, missing = check_repaired(stopped, disk, outcome.lost.seqs)
    assert missing, "the last block was in the record that was cut"


@pytest.mark.parametrize("name", ["FEED", "MANIFEST"])
def test_a_file_of_another_feed_is_a_problem(stopped, name):
    disk = stopped.disk.fork()
    one, *_, other = (path for path in files_of(disk) if path.endswith(name))
    content = disk.content(one)
    content[:] = disk.content(other)
    assert any(finding.what.startswith("it is ") for finding in problems(disk).values())
    outcome = repaired(stopped, disk)
    assert verify(disk, DATA).problems == []
    check_repaired(stopped, disk, outcome.lost.seqs)


@pytest.mark.parametrize(("name", "told"), [("7", "the feed has 2 partitions"), ("1", "its hashes are not those")])
def test_a_manifest_of_other_hashes_is_a_problem(stopped, name, told):
    disk = stopped.disk.fork()
    orders = stopped.start_on(stopped.disk.fork()).feeds.named("orders")
    directory = f"{DATA}/feeds/{orders.info.feed_id.hex()}"
    disk.make_directory(f"{directory}/{name}")
    manifest = codec.decode(read_file(disk, f"{directory}/0/MANIFEST"), "")
    content = codec.encode(manifest._replace(partition=int(name)))
    disk.create(f"{directory}/{name}/MANIFEST").write_at(0, (content,), len(content))
    assert any(told in finding.what for finding in problems(disk).values())


def test_what_is_no_feed_and_no_partition_is_passed_over(stopped):
    disk = stopped.disk.fork()
    orders = stopped.start_on(stopped.disk.fork()).feeds.named("orders")
    disk.make_directory(f"{DATA}/feeds/x")
    disk.make_directory(f"{DATA}/feeds/{orders.info.feed_id.hex()}/007")
    assert verify(disk, DATA).problems == []


def test_a_directory_of_a_feed_with_nothing_in_it_is_a_note(stopped):
    disk = stopped.disk.fork()
    disk.make_directory(f"{DATA}/feeds/{'ab' * 16}")
    report = verify(disk, DATA)
    assert report.problems == []
    assert any("the directory is empty" in finding.what for _, finding in report.notes)


def test_a_segment_that_cannot_be_opened_is_a_problem(stopped):
    disk = stopped.disk.fork()

    segment, opened = segments_of(disk)[0], []

    def before(name, path):
        if name == "open" and path == segment:
            opened.append(path)
            if len(opened) == 3:  # before, for its version and its size
                raise OSError(errno.EACCES, "Permission denied", path)

    disk.before = before
    assert any("cannot be opened" in finding.what for finding in problems(disk).values())


def test_blocks_of_a_feed_that_nothing_tells_of_are_a_problem():
    made = make_directory()
    made.create("late", 1)
    made.write("late", [(b"k", bytes(3_000))])
    made.node.storage.journal._rotate()
    made.write("late", [(b"k", b"v")])
    made.stop()
    for path in journal_of(made.disk)[:-1]:
        made.disk.remove(path)
    # Its name is lost with its creation and its row in _feeds.
    assert any("which is unknown" in finding.what for _, finding in verify(made.disk, DATA).problems)
