import contextlib
import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tailrace_server.made_directory import DATA, MadeDirectory

from tailrace_server.directory import identity
from tailrace_server.directory import restored_marks as marks
from tailrace_server.directory.identity import BadDirectory
from tailrace_server.host.disk import read_file
from tailrace_server.offline.backup import backup
from tailrace_server.offline.restore import restore
from tailrace_server.offline.verify import verify
from tailrace_server.replication.membership import Membership, MembershipFile


@pytest.fixture
def made():
    made = MadeDirectory()
    made.create("orders")
    made.write("orders", [(b"k", b"v")])
    return made


@pytest.mark.parametrize(
    ("name", "told"), [("RESTORING", "restore again"), ("REPAIRING", "tailrace repair"), ("BACKUP", "tailrace restore")]
)
def test_a_directory_with_such_a_mark_is_not_served(made, name, told):
    made.stop()
    marks.mark(made.disk, DATA, name)
    before = sorted(made.disk.names_now)
    with pytest.raises(BadDirectory, match=told):
        made.start()
    assert sorted(made.disk.names_now) == before
    marks.unmark(made.disk, DATA, name)
    made.start()


@pytest.mark.parametrize("by_mark", [True, False])
def test_a_restored_directory_begins_a_branch_with_a_term_far_above(made, by_mark):
    [before] = {p.log.term for p in made.node.feeds.partitions()}
    restored = marks.restored_term(before, made.host.clock.wall_us())
    old = made.node.identity
    made.stop()
    if by_mark:
        marks.mark_restored(made.disk, DATA, made.host.randomness)
    node = made.start(restored=not by_mark)
    assert {p.log.term for p in node.feeds.partitions()} == {restored}
    assert all(p.log[0].base == p.high_seq for p in node.feeds.partitions())
    assert node.identity.cluster_id == old.cluster_id
    assert node.identity.node_id != old.node_id
    assert node.identity.placement_id != old.placement_id
    assert "restored" in node.services.unclean_start
    assert not marks.is_restored(made.disk, DATA)
    made.stop()
    assert {p.log.term for p in made.start().feeds.partitions()} == {restored}


@pytest.mark.parametrize("by_mark", [True, False])
@pytest.mark.parametrize("other", ["members", "replica_of"])
def test_a_restored_directory_is_none_of_a_member_or_a_replica(made, by_mark, other):
    made.stop()
    if by_mark:
        marks.mark_restored(made.disk, DATA, made.host.randomness)
    files = sorted(made.disk.names_now)
    there, elsewhere = made.config.listen, ("there", 1)
    changes = {"members": (there, elsewhere)} if other == "members" else {"replica_of": elsewhere}
    with pytest.raises(BadDirectory, match=r"empty directory.* 'A backup in a set'"):
        made.start(restored=not by_mark, **changes)
    assert sorted(made.disk.names_now) == files
    made.start(restored=not by_mark)
    made.stop()
    made.start(**changes)


def test_a_member_s_directory_that_was_repaired_has_no_vote(made):
    """Repair leaves its ids as they are."""
    old = made.node.identity
    MembershipFile(made.disk, DATA, old.placement_id).store(Membership(3, 3, True, False, True, True))
    made.stop()
    marks.mark(made.disk, DATA, marks.RESTORED_NAME)
    identity = made.start().identity
    assert identity.placement_id != old.placement_id
    found = MembershipFile(made.disk, DATA, identity.placement_id).now
    assert (found.votes, found.led, found.term) == (False, False, 3)


def test_a_restored_directory_of_a_member_starts_alone_only_if_that_is_said(made):
    """At a member's address it would take writes that the set never gets."""
    old = made.node.identity
    MembershipFile(made.disk, DATA, old.placement_id, 3, 1).store(Membership(3, 3, True, False, True, True))
    made.stop()
    marks.mark_restored(made.disk, DATA, made.host.randomness)
    files = sorted(made.disk.names_now)
    with pytest.raises(BadDirectory, match=r"of a member of a set.*once with --restored, at an address that is no"):
        made.start()
    assert sorted(made.disk.names_now) == files
    made.start(restored=True)
    made.stop()
    made.start()


def test_a_backup_of_a_member_starts_alone_only_if_that_is_said(made):
    """A backup has no MEMBERSHIP. So has a backup of what was restored, and not served yet."""
    MembershipFile(made.disk, DATA, made.node.identity.placement_id, 3, 1).store(
        Membership(3, 3, True, False, True, True)
    )
    backup(made.disk, DATA, "/backup", 0)
    restore(made.disk, "/backup", "/restored", made.host.randomness)
    backup(made.disk, "/restored", "/again", 0)
    restore(made.disk, "/again", "/last", made.host.randomness)
    assert verify(made.disk, "/last").problems == []
    made.stop()
    made.config = dataclasses.replace(made.config, data="/last")
    with pytest.raises(BadDirectory, match=r"of a member of a set.*once with --restored, at an address that is no"):
        made.start()
    made.start(restored=True)
    assert not made.disk.exists("/last/OF_SET")
    made.stop()
    made.start()


def test_who_restores_a_backup_again_passes_all_that_went_on_from_it_before(made):
    """Else the consumers of the first restore would take the second one for a node that is behind, for ever."""
    made.stop()
    marks.mark_restored(made.disk, DATA, made.host.randomness)
    backup = made.disk.fork()
    for _ in range(5):  # and stops that are not clean
        made.start()
        made.kill()
    [gone_on] = {p.log.term for p in made.start().feeds.partitions()}
    made.host.clock.advance(1.0)
    for partition in made.start_on(backup).feeds.partitions():
        assert partition.log.term > gone_on


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 60))
def test_a_restored_term_is_above_the_last_one_and_no_lower_than_the_time(term, now_us):
    restored = marks.restored_term(term, now_us)
    assert restored > term
    assert restored >= now_us // 1000
    if now_us // 1000 <= term:
        assert restored == term + marks.RESTORED_TERMS


def test_the_mark_goes_only_when_the_branches_are_durable(made, memory_disk):
    [before] = {p.log.term for p in made.node.feeds.partitions()}
    restored = marks.restored_term(before, made.host.clock.wall_us())
    made.stop()
    marks.mark_restored(made.disk, DATA, made.host.randomness)
    for crash_at in range(1_000):
        disk = made.disk.fork()
        disk.crash_at(crash_at)
        try:
            made.start_on(disk)
        except memory_disk.Crashed:
            disk.cut_power(random.Random(crash_at))
            node = made.start_on(disk)
            assert min(p.log.term for p in node.feeds.partitions()) >= restored
        else:
            return
    raise AssertionError("the start has more steps than this test tries")


def test_what_was_never_a_node_s_is_not_restored(memory_disk):
    disk = memory_disk()
    disk.make_directory(DATA)
    with pytest.raises(BadDirectory, match="restore the data first"):
        marks.mark_restored(disk, DATA, None)


def test_node_has_a_checksum(made):
    path = f"{DATA}/NODE"
    good = identity.load(made.disk, DATA)
    data = bytes(read_file(made.disk, path))
    for bit in range(8 * len(data)):
        made.disk.flip(path, bit)
        with contextlib.suppress(BadDirectory):
            assert identity.load(made.disk, DATA) == good, "a flip that is not noticed changes nothing"
        made.disk.flip(path, bit)
