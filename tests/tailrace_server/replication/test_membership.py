"""The file MEMBERSHIP: durable at once, whole or as before, refused where it is damaged."""

import json

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.directory.identity import BadDirectory
from tailrace_server.replication import membership
from tailrace_server.replication.debts import Debt
from tailrace_server.replication.lineage import STARTS_MAX, MemberStart
from tailrace_server.replication.membership import FILE_NAME, Membership, MembershipFile
from tailrace_server.replication.standings import PartitionId, Standing
from tailrace_server.replication.voters import VACANT, Voters

ME, OTHER = b"m" * 16, b"o" * 16
RECORD = Voters(3, 1, (ME, OTHER))
PATH = f"/data/{FILE_NAME}"


@pytest.fixture
def disk(memory_disk):
    disk = memory_disk()
    disk.make_directory("/data")
    return disk


terms = st.integers(0, 2**63 - 1)
debts = st.builds(
    Debt,
    st.builds(PartitionId, st.binary(min_size=16, max_size=16), st.integers(0, 9)),
    st.builds(Standing, terms, terms),
)
starts = st.builds(
    MemberStart, terms, st.binary(min_size=8, max_size=8), st.tuples(st.integers(0, 2**32), st.integers(0, 2**32))
)


@st.composite
def records(draw):
    ids = draw(st.lists(st.binary(min_size=16, max_size=16).filter(any), max_size=3, unique=True))
    record = Voters(draw(terms), draw(terms), (*ids, VACANT))
    if draw(st.booleans()):
        record = record.naming(tuple(f"m:{number + 1}" for number in range(len(record.seats))))
        record = record.with_joining("new:1").with_leaving("m:1")._replace(epoch=record.epoch)
    return record


memberships = st.builds(
    Membership,
    terms,
    terms,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.lists(st.binary(min_size=16, max_size=16), max_size=3).map(tuple),
    st.lists(debts, max_size=3).map(tuple),
    st.integers(0, 9),
    st.integers(-1, 8),
    starts,
    st.lists(starts, max_size=STARTS_MAX).map(tuple),
    st.none() | starts,
    voters=records(),
)


@given(membership=memberships, rnd=st.randoms())
def test_what_was_stored_survives_a_power_loss(memory_disk, membership, rnd):
    disk = memory_disk()
    disk.make_directory("/data")
    file = MembershipFile(disk, "/data", ME)
    file.store(membership)
    assert file.now == (membership._replace(votes=False) if membership.voters.epoch else membership)
    disk.cut_power(rnd)
    assert MembershipFile(disk, "/data", ME).now == file.now


def test_from_epoch_1_on_the_record_says_who_votes(disk):
    file = MembershipFile(disk, "/data", ME)
    file.store(Membership(votes=True, voters=RECORD))
    assert file.now.votes
    file.store(file.now.knowing(RECORD.with_seat(0, VACANT)))
    assert not file.now.votes
    assert file.now.knowing(RECORD) == file.now
    file.store(file.now.followed(4, (ME,), ME, RECORD.led_in(4)))
    assert file.now.votes


def test_a_file_of_version_1_is_of_epoch_0(disk):
    MembershipFile(disk, "/data", ME).store(Membership(term=5, votes=True, founders=(ME, OTHER)))
    file = disk.open(PATH, writable=True)
    value = json.loads(file.read_at(0, file.size())) | {"version": 1}
    del value["voters"], value["checksum"]
    value["checksum"] = f"{xxhash.xxh3_64_intdigest(json.dumps(value).encode()):016x}"
    data = json.dumps(value).encode()
    file.truncate(0)
    file.write_at(0, [data], len(data))
    found = MembershipFile(disk, "/data", ME)
    assert found.now == Membership(term=5, votes=True, founders=(ME, OTHER))
    found.store(found.now.knowing(RECORD))
    assert MembershipFile(disk, "/data", ME).now.voters == RECORD


def test_a_record_that_names_the_members_decides_instead_of_the_list(disk):
    named = RECORD.naming(("a:1", "b:2")).with_joining("c:3")
    MembershipFile(disk, "/data", ME, 2, 0).store(Membership(founded=True, voters=named))
    assert MembershipFile(disk, "/data", ME, 3, 2, own="a:1").now.voters == named
    with pytest.raises(BadDirectory, match="is the directory of the member a:1, and this node is c:3"):
        MembershipFile(disk, "/data", ME, 3, 2, own="c:3")
    removed = named.with_leaving("a:1").without("a:1")
    MembershipFile(disk, "/data", ME, 2, 0, own="a:1").store(Membership(founded=True, voters=removed))
    assert not MembershipFile(disk, "/data", ME, 2, 0, own="a:1").now.votes


def test_a_file_of_version_2_names_nobody(disk):
    MembershipFile(disk, "/data", ME, 2, 0).store(Membership(founded=True, voters=RECORD))
    file = disk.open(PATH, writable=True)
    value = json.loads(file.read_at(0, file.size())) | {"version": 2}
    assert "names" not in value["voters"]
    del value["checksum"]
    value["checksum"] = f"{xxhash.xxh3_64_intdigest(json.dumps(value).encode()):016x}"
    data = json.dumps(value).encode()
    file.truncate(0)
    file.write_at(0, [data], len(data))
    assert MembershipFile(disk, "/data", ME, 2, 0).now.voters == RECORD
    with pytest.raises(BadDirectory, match="belongs to a set of 2 members"):
        MembershipFile(disk, "/data", ME, 3, 0)


def test_a_promise_is_taken_back_once_the_seat_is_lost():
    voter = Membership(term=5, votes=True, voters=RECORD)
    with pytest.raises(AssertionError):
        voter.followed(4, (), ME, RECORD)
    lost = voter.followed(4, (), ME, RECORD.with_seat(0, VACANT))
    assert (lost.term, lost.votes) == (4, False)


def test_a_leader_writes_its_term_into_the_record():
    assert Membership(voters=RECORD).leading(9, forced=False).voters == RECORD.led_in(9)


def test_a_directory_without_one_has_promised_nothing(disk):
    assert MembershipFile(disk, "/data", ME).now == Membership()


def test_the_copy_of_a_directory_has_no_vote_and_has_not_led(disk):
    MembershipFile(disk, "/data", ME).store(Membership().leading(5, forced=False, founders=(ME,)))
    copy = MembershipFile(disk, "/data", OTHER).now
    assert (copy.term, copy.leader_term) == (5, 5)
    assert not any((copy.votes, copy.led, copy.forced))


def test_a_damaged_one_stops_the_start(disk):
    MembershipFile(disk, "/data", ME).store(Membership(term=5))
    file = disk.open(PATH, writable=True)
    data = file.read_at(0, file.size())
    for damaged in (data.replace(b'"term": 5', b'"term": 4'), data[:-10], b"[]", b"", b"\xff"):
        file.truncate(0)
        file.write_at(0, [damaged], len(damaged))
        with pytest.raises(BadDirectory, match="MEMBERSHIP is damaged"):
            MembershipFile(disk, "/data", ME)


def test_one_of_another_version_is_named(disk):
    MembershipFile(disk, "/data", ME).store(Membership(term=5))
    file = disk.open(PATH, writable=True)
    value = json.loads(file.read_at(0, file.size())) | {"version": 4}
    data = json.dumps(value).encode()
    file.truncate(0)
    file.write_at(0, [data], len(data))
    with pytest.raises(BadDirectory, match="version 4"):
        MembershipFile(disk, "/data", ME)


def test_a_founder_votes_as_soon_as_it_follows_and_nobody_else_does():
    assert Membership().followed(1, (ME, OTHER), ME).votes
    assert not Membership().followed(1, (OTHER,), ME).votes


def test_who_leads_votes_from_then_on():
    """A member whose disk was replaced, promoted by force."""
    forced = Membership(term=3).leading(3, forced=True)
    assert forced.votes
    assert forced.followed(4, (), ME).votes


def test_who_leads_owes_nothing_and_who_follows_still_does():
    debts = (Debt(PartitionId(ME, 0), Standing(1, 80)),)
    owing = Membership(term=3).owing(debts)
    assert owing.promised(4).followed(4, (), ME).owes == debts
    assert owing.leading(4, forced=True).owes == ()


def test_following_ends_having_led():
    led = Membership().leading(1, forced=False)
    assert led.promised(2).led  # nobody has led by that promise yet
    assert not led.promised(2).followed(2, (), ME).led


def test_a_promise_is_never_taken_back():
    with pytest.raises(AssertionError):
        Membership(term=5).promised(4)
    with pytest.raises(AssertionError):
        Membership(term=5, votes=True).followed(4, (), ME)


def test_a_promise_that_was_made_without_a_vote_ends_with_the_leader_that_is_followed():
    assert Membership(term=5).followed(4, (), ME).term == 4


def test_the_size_of_the_set_is_stored_with_what_makes_the_directory_one_of_it(disk):
    file = MembershipFile(disk, "/data", ME, 5)
    file.store(file.now.promised(3))
    assert MembershipFile(disk, "/data", ME, 3).now.size == 0  # it has promised something, and belongs to no set yet
    file.store(file.now.followed(3, (ME,), ME))
    assert MembershipFile(disk, "/data", ME, 5).now.size == 5
    file.store(file.now.leading(4, forced=False))
    assert MembershipFile(disk, "/data", ME, 5).now.size == 5


@pytest.mark.parametrize("members", [2, 3, 4, 7])
def test_a_list_of_another_length_is_refused(disk, members):
    file = MembershipFile(disk, "/data", ME, 5)
    file.store(file.now.leading(1, forced=False, founders=(ME, OTHER)))
    with pytest.raises(
        BadDirectory,
        match=rf"a set of 5 members, and --members names {members}.*replace a lost member at its address.*member add",
    ):
        MembershipFile(disk, "/data", ME, members)
    assert MembershipFile(disk, "/data", ME).now.size == 5  # outside of a set it is looked at, and kept
    assert MembershipFile(disk, "/data", OTHER, members).now.size == 0  # a copy is no member's directory


def test_the_place_in_the_list_is_stored_with_what_makes_the_directory_one_of_a_set(disk):
    file = MembershipFile(disk, "/data", ME, 3, 1)
    file.store(file.now.promised(3))
    assert MembershipFile(disk, "/data", ME, 3, 2).now.number == -1  # it belongs to no set yet
    file.store(file.now.followed(3, (ME,), ME))
    assert MembershipFile(disk, "/data", ME, 3, 1).now.number == 1
    file.store(file.now.leading(4, forced=False))
    assert MembershipFile(disk, "/data", ME, 3, 1).now.number == 1


@pytest.mark.parametrize("number", [0, 2])
def test_the_directory_of_another_member_is_refused(disk, number):
    """A copy by `cp -r` has the placement id and the vote of the original."""
    file = MembershipFile(disk, "/data", ME, 3, 1)
    file.store(file.now.leading(1, forced=False, founders=(ME, OTHER)))
    expected = rf"another member: of number 2 in the list, and this node is number {number + 1} of --members"
    with pytest.raises(BadDirectory, match=expected):
        MembershipFile(disk, "/data", ME, 3, number)
    assert MembershipFile(disk, "/data", ME).now.number == 1  # outside of a set it is looked at, and kept
    assert MembershipFile(disk, "/data", OTHER, 3, number).now.number == -1  # a copy with an id of its own has no vote


def test_a_file_without_a_size_takes_that_of_the_list(disk):
    """As earlier versions wrote it."""
    MembershipFile(disk, "/data", ME).store(Membership().leading(5, forced=False, founders=(ME,)))
    file = disk.open(PATH, writable=True)
    value = json.loads(file.read_at(0, file.size()))
    del value["checksum"], value["size"], value["number"]
    data = json.dumps(value | {"checksum": membership._checksum(value)}).encode()
    file.truncate(0)
    file.write_at(0, [data], len(data))
    found = MembershipFile(disk, "/data", ME, 3, 2)
    assert (found.now.size, found.now.number) == (0, -1)
    found.store(found.now.promised(6))
    now = MembershipFile(disk, "/data", ME, 3, 2).now
    assert (now.size, now.number) == (3, 2)


def test_a_damaged_one_is_not_to_be_put_back_from_a_backup(disk):
    """An older copy has not made the promises that were made since."""
    MembershipFile(disk, "/data", ME).store(Membership(term=5))
    disk.flip(PATH, 300)
    with pytest.raises(BadDirectory, match=r"empty directory.*older copy of the file would take back promises"):
        MembershipFile(disk, "/data", ME)
