"""Two groups of partitions in one process, each with members, a term and a leader of its own."""

from types import SimpleNamespace

import pytest

from tailrace.errors import NotLeader, Overloaded
from tailrace.link.address import Address
from tailrace.model import EndReason, FeedInfo, Level
from tailrace.wire.replica_messages import Replica, ReplicaAck
from tailrace_server.feeds.catalog import Catalog
from tailrace_server.feeds.feed import Feed
from tailrace_server.replication.groups import Group
from tailrace_server.replication.leadership import Leadership
from tailrace_server.replication.leaderships import Leaderships, Terms, confirm_all, lead_all
from tailrace_server.replication.member_list import MemberList
from tailrace_server.replication.role import Role
from tailrace_server.replication.waiting import WaitingAnswers
from tailrace_server.state.memory import MemoryAccount

FEED_ID = b"f" * 16
OWN = Address("10.0.0.1", 1)
EVEN_MEMBERS = (OWN, Address("10.0.0.2", 1), Address("10.0.0.3", 1))
ODD_MEMBERS = (OWN, *(Address(f"10.0.1.{number}", 1) for number in range(2, 6)))


def by_parity(feed_id, partition):
    """Even partitions, that of ``_feeds`` among them, are group 0, odd ones group 1."""
    return partition % 2


class Streams:
    """The open streams of the node: one of each partition."""

    def __init__(self, partitions):
        self.open = [SimpleNamespace(partition=partition) for partition in partitions]
        self.ended = []

    def end_streams(self, which, reason, message, *, feed_id=None):
        ended = [s for s in self.open if feed_id in (None, s.partition.feed_id) and which(s)]
        self.open = [stream for stream in self.open if stream not in ended]
        self.ended += [(stream.partition.id, reason) for stream in ended]

    def end_replicas(self, leadership, error):
        """There are none."""

    def flush(self):
        """Sends nothing."""


class Asked:
    """A connection of a replica, which notes the questions of leaders."""

    def __init__(self):
        self.numbers = []

    def ask(self, number):
        self.numbers.append(number)


class MadeNode:
    """What a node has of two groups: even and odd partitions of a feed of four, a set of three and one of five."""

    def __init__(self):
        self.feeds = Catalog(MemoryAccount())
        info = FeedInfo("orders", FEED_ID, 4, "hash", "compact", None, None, 259_200, "stream")
        self.feed = Feed.of(info, b"b" * 16, MemoryAccount())
        self.feeds.add(self.feed)
        for partition in self.feed.partitions:
            partition.high_seq = partition.durable_seq = 100
        self.streams, self.waiting = Streams(self.feed.partitions), WaitingAnswers()
        self.even, self.odd = (
            Leadership(
                Group(number, self.feeds, by_parity),
                self.streams,
                self.waiting,
                members=MemberList(members, OWN),
                is_alone=False,
            )
            for number, members in enumerate((EVEN_MEMBERS, ODD_MEMBERS))
        )
        self.leaderships = Leaderships([self.even, self.odd], self.feeds, by_parity)

    def states(self):
        return [partition.state for partition in self.feed.partitions]

    def follow(self, leadership, voter, number):
        """A member of the leadership's set follows a partition of it, as far as it goes."""
        partition, placement_id = self.feed.partitions[number], bytes([voter]) * 16
        replica = Replica(placement_id, leadership.term, str(leadership.members.now[voter]), True, b"c" * 16)
        peer = leadership.replicas.opened(replica, partition)
        leadership.acknowledged(placement_id, partition, ReplicaAck(number, partition.log.branch, 100), 0.0)
        return peer


@pytest.fixture
def node():
    return MadeNode()


def test_each_partition_has_its_leadership(node):
    leaderships, partitions = node.leaderships, node.feed.partitions
    assert list(leaderships) == [node.even, node.odd]
    assert [leaderships.of_partition(partition) for partition in partitions] == [node.even, node.odd] * 2
    assert [leaderships.of(b"unknown feed 16b", number) for number in range(2)] == [node.even, node.odd]
    assert leaderships.system is leaderships.unnamed is node.even, "messages without a group mean that of _feeds"
    assert [partition.id for partition in node.odd.group] == [1, 3]
    assert [partition.feed_id[:1] for partition in node.even.group] == [b"\0", b"f", b"f"]
    assert tuple(leaderships.of_feed(FEED_ID)) == (node.even, node.odd)
    assert tuple(leaderships.of_feed(b"unknown feed 16b")) == (node.even,)
    assert tuple(leaderships.of_partitions(partitions[1::2])) == (node.odd,)
    assert (node.even.majority, node.odd.majority) == (2, 3)


def test_role_and_term_of_one_group_do_not_touch_the_other(node):
    assert node.states() == ["follower"] * 4
    before = node.leaderships.changes()
    node.even.become_leader(7)
    assert node.states() == ["leader", "follower"] * 2
    assert [(it.role, it.term, it.refuses_writes) for it in node.leaderships] == [
        (Role.LEADER, 7, False),
        (Role.FOLLOWER, 0, True),
    ]
    assert node.streams.ended == [(0, EndReason.WRONG_STATE), (2, EndReason.WRONG_STATE)]
    assert node.leaderships.changes() == {0: before[0] + 1, 1: before[1]}
    node.odd.become_follower(3, "10.0.1.2:1")
    assert (node.even.term, node.even.leader, node.odd.term, node.odd.leader) == (7, "", 3, "10.0.1.2:1")
    node.even.require_writable()
    with pytest.raises(NotLeader) as raised:
        node.odd.require_writable()
    assert raised.value.leader == "10.0.1.2:1"
    node.odd.become_leader(4)
    node.even.pause_writes()
    with pytest.raises(Overloaded):
        node.even.require_writable()
    node.odd.require_writable()
    node.even.step_down(8)
    assert (node.states(), node.odd.term) == (["follower", "leader"] * 2, 4)


def test_each_group_has_the_majority_of_its_own_members(node):
    partitions = node.feed.partitions
    for leadership in node.leaderships:
        leadership.become_leader(1)
        leadership.confirmations.confirm(lambda error: None)
    node.follow(node.even, 1, 0)
    node.follow(node.odd, 1, 1)
    assert [partition.quorum_seq for partition in partitions] == [100, 0, 0, 0], "of three two suffice, of five not"
    assert len(node.even.replicas.voters()) == len(node.odd.replicas.voters()) == 1
    node.follow(node.odd, 2, 1)
    assert [partition.quorum_seq for partition in partitions] == [100, 100, 0, 0]
    node.even.step_down(2)
    assert (node.even.replicas.peers, len(node.odd.replicas.peers)) == ({}, 2)


def test_what_waits_fails_with_its_own_group(node):
    even, odd, both = [], [], []
    for leadership in node.leaderships:
        leadership.become_leader(1)
    zero, one = node.feed.partitions[:2]
    node.waiting.wait(Level.QUORUM, [(zero, 100)], even.append)
    node.waiting.wait(Level.QUORUM, [(one, 100)], odd.append)
    node.waiting.wait(Level.QUORUM, [(zero, 100), (one, 100)], both.append)
    node.even.step_down(2)
    assert [type(error) for error in (*even, *both)] == [NotLeader] * 2
    assert odd == []
    for voter in (1, 2):
        node.follow(node.odd, voter, 1)
    assert odd == [None]
    assert len(both) == 1


def test_a_confirmation_of_both_groups_needs_both(node):
    answers = {"both": [], "even": [], "deposed": []}
    connections = {}
    for leadership in node.leaderships:
        leadership.become_leader(1)
        for voter in (1, 2):
            peer = node.follow(leadership, voter, leadership.group.number)
            connections[leadership, voter] = connection = Asked()
            peer.add_connection(connection)
    both = list(node.leaderships)
    confirm_all(both, answers["both"].append)
    confirm_all([node.even], answers["even"].append)
    node.even.confirmations.answered(bytes([1]) * 16, 1)
    node.even.confirmations.answered(bytes([1]) * 16, 2)
    assert (answers["both"], answers["even"]) == ([], [None])
    node.odd.confirmations.answered(bytes([1]) * 16, 1)
    assert answers["both"] == [], "two others have to say so of five members"
    node.odd.confirmations.answered(bytes([2]) * 16, 1)
    assert answers["both"] == [None]
    confirm_all(both, answers["deposed"].append)
    node.odd.step_down(2)
    assert [type(error) for error in answers["deposed"]] == [NotLeader]
    node.even.confirmations.answered(bytes([1]) * 16, 3)
    assert len(answers["deposed"]) == 1
    assert [connections[node.odd, voter].numbers for voter in (1, 2)] == [[1, 2]] * 2


def test_a_cancelled_confirmation_of_both_groups_is_not_called(node):
    told = []
    for leadership in node.leaderships:
        leadership.become_leader(1)
    cancel = confirm_all(list(node.leaderships), told.append)
    cancel()
    for leadership in node.leaderships:
        leadership.step_down(2)
    assert told == []


def test_terms_hold_as_long_as_each_group_is_led_in_its_term(node):
    node.even.become_leader(5)
    node.odd.become_leader(6)
    of_even, of_both = Terms([node.even]), Terms(list(node.leaderships))
    of_both.require_writable()
    node.odd.become_leader(9)
    of_even.require_writable()
    with pytest.raises(NotLeader, match="led in term 6, and leads anew in term 9"):
        of_both.require()
    assert lead_all(node.leaderships)
    node.odd.step_down(10)
    assert not lead_all(node.leaderships)


async def test_how_far_leaders_are_is_asked_of_the_leader_of_each_group(node):
    async def accepted_seqs(feed_ids):
        assert feed_ids == [FEED_ID]
        return {FEED_ID: [7, 8, 9, 10]}

    node.odd.become_follower(2, "10.0.1.2:1")
    node.odd.accepted_seqs = accepted_seqs
    node.even.become_leader(2)
    node.even.confirmations.confirm = lambda callback: callback(None)
    seqs = await node.leaderships.leaders_seqs(node.feed.partitions)
    assert [seqs(FEED_ID, number) for number in range(4)] == [100, 8, 100, 10]


async def test_a_group_without_a_leader_says_so(node):
    node.even.become_leader(2)
    node.even.confirmations.confirm = lambda callback: callback(None)
    with pytest.raises(NotLeader):
        await node.leaderships.leaders_seqs(node.feed.partitions)
    seqs = await node.leaderships.leaders_seqs(node.feed.partitions[::2])
    assert [seqs(FEED_ID, number) for number in (0, 2)] == [100, 100], "the other group is not asked"


def test_a_feed_that_comes_later_gets_the_roles_of_its_groups(node):
    node.odd.become_leader(1)
    info = FeedInfo("later", b"g" * 16, 2, "hash", "compact", None, None, 259_200, "stream")
    feed = Feed.of(info, b"b" * 16, MemoryAccount())
    node.feeds.add(feed)
    for partition in feed.partitions:
        node.leaderships.adopt(partition)
    assert [partition.state for partition in feed.partitions] == ["follower", "leader"]
