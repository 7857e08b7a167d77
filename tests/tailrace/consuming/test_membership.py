"""A member of a group, frame by frame: partitions that come back around a release."""

import pytest

from tailrace import Assigned, Revoked
from tailrace.consuming.index_membership import IndexMembership
from tailrace.consuming.membership import CommitWait, Membership
from tailrace.consuming.subscription import Claim, Subscription
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.wire.bodies import encode_json
from tailrace.wire.consumer_messages import Change, Commit, Hold, Owned
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.opcodes import Opcode

FEED, CLUSTER = b"f" * 16, b"c" * 16
LEASE_S = 10.0


def at(seq):
    return Position.at(FailoverLog([(b"u" * 16, 1, 0)]), seq)


class Streams:
    """The part of the streams that a membership uses."""

    chosen_ids = ()

    def __init__(self):
        self.ids = set()
        self._id = 0

    def new_id(self):
        self._id += 1
        return self._id

    def add(self, id, position):
        self.ids.add(id)

    def remove(self, id):
        self.ids.discard(id)

    def forget_handled(self, ids):
        list(ids)


class Program:
    """A member that owns the partitions 0 and 1, at a node that answers by ``answer``."""

    def __init__(self, kind=Membership, **options):
        claim = Claim("group", "workers", b"m" * 16)
        subscription = Subscription("orders", claim=claim, **options)
        self.now = 0.0
        self.events = []
        self.renewals = []
        self.streams = Streams()
        self.disowned = []
        self.membership = kind(
            subscription,
            self.streams,
            lambda: self.now,
            self.events.append,
            lambda partitions: None,
            self.disowned.extend,
        )
        self.join({0: 1, 1: 1})

    def join(self, generations):
        [join] = self.frames([self.membership.linked(CLUSTER, FEED)])
        self.answer(join, owned(generations)._replace(lease_s=LEASE_S).to_json())

    def frames(self, data):
        return FrameDecoder().receive_data(b"".join(data))

    def sent(self):
        frames = self.frames(self.membership.data_to_send())
        self.renewals += [frame for frame in frames if frame.opcode is Opcode.CONSUMER_RENEW]
        return frames

    def answer(self, request, value):
        self.receive(encode_json(Opcode.RESULT, value, request.id))

    def receive(self, data):
        for frame in self.frames([data]):
            assert self.membership.receive(frame)

    def release_one(self):
        """Returns the RELEASE of partition 1, which the program has finished."""
        self.receive(Change(owned({}), revoked=(1,)).encode(1))
        self.membership.handled(self.events[-1])
        return next(frame for frame in self.sent() if frame.opcode is Opcode.CONSUMER_RELEASE)

    def commit(self, positions):
        wait = CommitWait(lambda: None)
        self.membership.commit(positions, wait)
        commits = [frame for frame in self.sent() if frame.opcode is Opcode.CONSUMER_COMMIT]
        for frame in commits:
            self.answer(frame, {"stale": []})
        return wait, [Commit.decode(frame.body) for frame in commits]


def owned(generations):
    positions = Positions(CLUSTER, FEED, {partition: at(0) for partition in generations})
    return Owned(generations, positions if generations else None)


@pytest.mark.parametrize("is_answered_first", [False, True])
def test_a_partition_that_comes_back_around_the_answer_to_its_release(is_answered_first):
    program = Program()
    release = program.release_one()
    assert Hold.decode(release.body, "").generations == {1: 1}
    steps = [
        lambda: program.answer(release, {}),
        lambda: program.receive(Change(owned({1: 3})).encode(1)),
    ]
    for step in steps if is_answered_first else reversed(steps):
        step()
    assert program.events[-1] == Assigned((1,))
    assert program.streams.ids == {0, 1}
    assert not [frame for frame in program.sent() if frame.opcode is Opcode.CONSUMER_RELEASE]
    wait, [commit] = program.commit({0: at(5), 1: at(6)})
    assert commit.generations == {0: 1, 1: 3}
    wait.result()
    for program.now in (LEASE_S / 2, LEASE_S * 1.2):
        program.sent()
        program.answer(program.renewals.pop(), {"generations": {"0": 1, "1": 3}})
    assert not program.membership.is_paused


def test_a_release_whose_answer_was_lost_is_no_loss():
    program = Program()
    program.release_one()
    program.membership.connection_lost()
    program.join({0: 1})
    assert not [event for event in program.events if isinstance(event, Revoked) and event.lost]
    wait, [commit] = program.commit({0: at(5)})
    assert commit.generations == {0: 1}
    wait.result()


@pytest.mark.parametrize(("kind", "disowned"), [(Membership, [1]), (IndexMembership, [])])
def test_the_position_of_an_event_in_hand_of_a_lost_partition_counts_for_an_index_only(kind, disowned):
    """An index refuses rows and position together, and has both together."""
    program = Program(kind)
    program.receive(Change(owned({}), lost=(1,)).encode(1))
    assert program.disowned == disowned


@pytest.mark.parametrize("is_stale", [True, False])
def test_an_answer_to_a_commit_of_an_earlier_generation(is_stale):
    """The partition was lost and has come back meanwhile: it is owned, and what it begins at counts."""
    program = Program()
    program.membership.commit({0: at(1), 1: at(2)}, CommitWait(lambda: None))
    [commit] = program.sent()
    program.receive(Change(owned({}), lost=(1,)).encode(1))
    program.receive(Change(owned({1: 3})).encode(1))
    program.answer(commit, {"stale": [1] if is_stale else []})
    assert program.events[-1] == Assigned((1,))
    assert program.streams.ids == {0, 1}
    _, [later] = program.commit({0: at(1), 1: at(2)})
    assert (later.generations, dict(later.positions)) == ({1: 3}, {1: at(2)})


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_commit_of_a_lost_partition_is_not_sent_again(comes_back):
    """The node has told of the loss, and the connection has ended before the answer to the commit."""
    program = Program()
    program.membership.commit({0: at(1), 1: at(2)}, CommitWait(lambda: None))
    program.sent()
    program.receive(Change(owned({}), lost=(1,)).encode(1))
    program.membership.connection_lost()
    program.join({0: 1, 1: 3} if comes_back else {0: 1})
    [commit] = [frame for frame in program.sent() if frame.opcode is Opcode.CONSUMER_COMMIT]
    assert Commit.decode(commit.body).generations == {0: 1}


def test_the_question_for_a_first_position_of_a_lost_partition_leaves_no_stream_open():
    program = Program(since_us=1)
    program.receive(Change(Owned({2: 1}, None)).encode(1))
    [asked] = [frame for frame in program.sent() if frame.opcode is Opcode.STREAM_REQUEST]
    program.receive(Change(owned({}), lost=(2,)).encode(1))
    assert [frame.id for frame in program.sent() if frame.opcode is Opcode.STREAM_CLOSE] == [asked.id]
