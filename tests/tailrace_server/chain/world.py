"""Three nodes that replicate one partition by segments, over a network that loses and repeats messages.

Decisions are those of `tailrace_server.chain`. Files are lists of rows. The plain model has each mutation by branch and
seq: after each step, every node has exactly the rows of its history up to its last seq.
"""

import collections
import itertools
from typing import NamedTuple

from tailrace_server.chain import compaction_rules, offering, receiving
from tailrace_server.chain.offering import OfferEvent, OfferState, Target
from tailrace_server.chain.receiving import OfferCase, Receiver, SegmentOffer

NODES = 3
MAJORITY = 2


class Row(NamedTuple):
    """A row of a file; ``value`` is None in a tombstone."""

    seq: int
    key: str
    value: int | None


class Message(NamedTuple):
    """A message between two nodes: the offer number ``number``, its answer ``event``, or the file with ``rows``.

    ``offset`` counts the rows that the target had of the file when it accepted the offer.
    """

    leader: int
    target: int
    number: int
    offer: SegmentOffer
    event: OfferEvent | None = None
    rows: tuple[Row, ...] | None = None
    offset: int = 0


class Node:
    """A node: the state that its disk keeps, and the state of its leadership."""

    def __init__(self, placement):
        self.placement = placement
        self.receiver = Receiver()
        self.history = ()  # (branch, base), oldest first, without a bound
        self.files = {}
        self.votes = True
        self.followed = None  # the placement of its leader
        self.copy = None
        self.half = {}  # the rows of a half received file, by its id
        self.step_down()

    def step_down(self):
        self.memory = []
        self.targets = {}
        self.acked = {}  # seq by placement, in this term
        self.compaction = None
        self.broken = {}  # by target: the link and the rows of a transfer that broke

    @property
    def chain(self):
        return self.receiver.chain

    @chain.setter
    def chain(self, chain):
        self.receiver = self.receiver._replace(chain=chain)

    @property
    def leads(self):
        return self.receiver.leads

    @property
    def term(self):
        return self.receiver.term

    @property
    def last_seq(self):
        return self.chain.last_seq

    @property
    def high_seq(self):
        return self.last_seq + len(self.memory)

    @property
    def standing(self):
        terms = [entry.term for entry in self.receiver.log if entry.base <= self.last_seq]
        return (terms[0] if terms else 0), self.last_seq

    def rows(self):
        """The newest row of each key, read from the files of the chain."""
        return newest(row for link in self.chain.links for row in self.files[link.id])

    def remove_unnamed_files(self):
        named = {link.id for link in (*self.chain.links, *self.chain.retired)}
        self.files = {id: rows for id, rows in self.files.items() if id in named}


def newest(rows):
    """{key: row} of the rows that win."""
    found = {}
    for row in rows:
        held = found.get(row.key)
        if receiving.replaces(row.seq, held and held.seq):
            found[row.key] = row
    return found


def puts(rows):
    return {key: row for key, row in rows.items() if row.value is not None}


class World:
    """The nodes, the messages on their way, and the model."""

    def __init__(self):
        self.ids = (number.to_bytes(16, "big") for number in itertools.count(1))
        self.nodes = [Node(next(self.ids)) for _ in range(NODES)]
        self.mail = []
        self.mutations = {}  # (branch, seq): row
        self.stable = set()  # (branch, seq) that no failover may lose
        self.seen = collections.Counter()  # the cases that occurred
        self.broken = self.continued = 0  # transfers

    # The model.

    def expected(self, history, last_seq):
        """{key: row} of the puts of a history up to a seq."""
        found = {}
        for seq in range(1, last_seq + 1):
            row = self.mutations.get((branch_at(history, seq), seq))
            assert row is not None, "a seq that the history does not have"
            found[row.key] = row
        return puts(found)

    def check(self):
        for node in self.nodes:
            node.chain.check()
            assert len(node.receiver.incoming) <= receiving.INCOMING_MAX
            assert all(link.id in node.files for link in (*node.chain.links, *node.chain.retired)), "a file is missing"
            assert puts(node.rows()) == self.expected(node.history, node.last_seq), "rows differ from the history"

    # Leadership.

    def promote(self, members):
        """The best of ``members``, a majority, leads in the next term. All of them promise it."""
        voters = [self.nodes[member] for member in members if self.nodes[member].votes]
        if len(voters) >= MAJORITY:
            self._lead(voters)

    def _lead(self, voters):
        term = max(node.term for node in self.nodes) + 1
        best = max(voters, key=lambda node: node.standing)
        for node in voters:
            node.step_down()
            node.receiver = node.receiver.promised(term)
        branch = next(self.ids)
        best.receiver = best.receiver.leading(term, branch)
        base = best.last_seq
        best.history = (*(entry for entry in best.history if entry[1] < base), (branch, base))
        best.followed = None

    def follow(self, number, leader):
        """A node learns of a leader, rolls back to its history, and tells it how far it has come."""
        node, leader = self.nodes[number], self.nodes[leader]
        if node is leader or not leader.leads or leader.term < node.term or (node.leads and leader.term == node.term):
            return
        node.step_down()
        last_seq = node.last_seq
        node.receiver = node.receiver.following(leader.term, leader.receiver.log, leader.high_seq)
        node.votes &= node.last_seq == last_seq  # it owes the set what it has rolled back
        node.history, node.followed = leader.history, leader.placement
        node.remove_unnamed_files()
        target = leader.targets.get(number, Target(node.placement))
        if target.placement != node.placement:
            target = Target(node.placement, number=target.number)
        leader.chain, leader.targets[number] = offering.reconnected(leader.chain, target, node.last_seq)
        self._catch_up(leader, node)

    def _catch_up(self, leader, node):
        if node.last_seq >= leader.last_seq:
            node.votes = True

    def restart(self, number):
        """A node forgets all that its disk does not keep."""
        node = self.nodes[number]
        node.step_down()
        node.half = {}
        node.receiver = Receiver(node.chain._replace(retired=()), node.receiver.log, node.term)
        node.remove_unnamed_files()

    def replace_disk(self, number):
        """A node begins again with an empty disk, another placement, and no vote."""
        if self._others_vote(number):
            term = self.nodes[number].term
            self.nodes[number] = node = Node(next(self.ids))
            node.votes = False
            node.receiver = node.receiver.promised(term)

    def copy_disk(self, number):
        """Copies the disk of a follower; ``restore_copy`` puts the copy back."""
        node = self.nodes[number]
        if not node.leads:
            node.copy = node.receiver, node.history, dict(node.files)

    def restore_copy(self, number):
        """A follower gets an older copy of its disk. Its leader does not know, and it has no vote."""
        node = self.nodes[number]
        if not node.leads and node.copy and self._others_vote(number):
            receiver, node.history, files = node.copy
            node.files, node.half = dict(files), {}
            node.receiver = Receiver(receiver.chain, receiver.log, node.term)
            node.votes, node.followed = False, None

    def _others_vote(self, number):
        return all(node.votes and node.last_seq for index, node in enumerate(self.nodes) if index != number)

    # A leader's work.

    def write(self, number, key, value):
        node = self.nodes[number]
        if node.leads:
            row = Row(node.high_seq + 1, key, value)
            node.memory.append(row)
            self.mutations[node.receiver.log.branch, row.seq] = row

    def flush(self, number):
        node = self.nodes[number]
        if node.leads and node.memory:
            id = next(self.ids)
            node.files[id] = tuple(node.memory)
            node.chain = node.chain.flushed(id, node.receiver.log.branch, node.high_seq)
            node.memory = []

    def stable_seq(self, node):
        """The last seq that a majority holds, acknowledged on the leader's newest branch."""
        base = node.receiver.log[0].base
        voters = {other.placement for other in self.nodes if other.votes}
        acked = [seq for placement, seq in node.acked.items() if placement in voters and seq >= base]
        seq = max(acked, default=0)
        if seq:
            self.stable.add((branch_at(node.history, seq), seq))
        return seq

    def begin_compaction(self, number, first, count):
        """Compacts links of the chain; ``finish_compaction`` puts the result in place, after flushes perhaps."""
        node = self.nodes[number]
        if node.leads and node.compaction is None:
            stable_seq = self.stable_seq(node)
            inputs = compaction_rules.compactable(node.chain.links, stable_seq)[first : first + count]
            if inputs:
                self._compact(node, inputs, stable_seq)

    def _compact(self, node, inputs, stable_seq):
        rows = newest(row for link in inputs for row in node.files[link.id])
        bound = compaction_rules.tombstones_bound(inputs, stable_seq)
        purged = [row.seq for row in rows.values() if row.value is None and row.seq <= bound]
        kept = tuple(sorted(row for row in rows.values() if row.seq not in purged))
        place = node.chain.links.index(inputs[-1]) + 1
        behind = node.chain.links[place] if place < len(node.chain.links) else None
        link = compaction_rules.compacted_link(next(self.ids), inputs, behind, max(purged, default=0))
        node.compaction = link, kept

    def finish_compaction(self, number):
        node = self.nodes[number]
        if node.compaction is not None:
            link, rows = node.compaction
            node.compaction = None
            node.files[link.id] = rows
            node.chain = node.chain.compacted(link)

    def remove_files(self, number):
        """Removes the files that may go. The leader's targets then hold their rows, by their own chains."""
        node = self.nodes[number]
        following = [other for other in self.nodes if other.followed == node.placement and other.term == node.term]
        placements = {other.placement for other in following} if node.leads else {node.followed} - {None}
        pinned = {target.segment_id for target in node.targets.values() if target.state is OfferState.SENDING}
        gone = node.chain.deletable(placements, pinned)
        if node.leads:
            for link in gone:
                assert all(other.last_seq >= link.last_seq for other in following), "a target needs a removed file"
        node.chain = node.chain.without(gone)
        node.remove_unnamed_files()

    # Offers.

    def offer(self, leader, target):
        node = self.nodes[leader]
        if not node.leads or target not in node.targets:
            return False
        broken, _ = node.broken.get(target, (None, ()))
        link = offering.next_link(node.chain, node.targets[target], broken)
        if link is None:
            return False
        if link is not broken:
            node.broken.pop(target, None)
        node.targets[target] = offering.offered(node.targets[target], link)
        offer = SegmentOffer(node.term, node.placement, link)
        self.mail.append(Message(leader, target, node.targets[target].number, offer))
        return True

    def retry(self, leader, target):
        node = self.nodes[leader]
        state = node.targets.get(target)
        if state is not None and state.state is OfferState.PAUSED:
            self._advance(leader, target, state.number, OfferEvent.RETRY)

    def deliver(self, index, *, again=False):
        """Delivers a message; ``again``: it is still on its way."""
        if self.mail:
            index %= len(self.mail)
            message = self.mail[index] if again else self.mail.pop(index)
            self._take(message)

    def lose(self, index, *, noticed=True):
        """A connection breaks: a message is lost. The leader sees it; the target does if ``noticed``."""
        if self.mail:
            message = self.mail.pop(index % len(self.mail))
            node = self.nodes[message.target]
            if noticed:
                node.receiver = node.receiver.abandoned(message.offer.link.id)
            self._advance(message.leader, message.target, message.number, OfferEvent.FAILED)

    def break_transfer(self, index, count):
        """A connection breaks within a file: the target has ``count`` more of its rows, and the leader keeps it."""
        files = [message for message in self.mail if message.rows is not None]
        if not files:
            return
        message = files[index % len(files)]
        leader, node, link = self.nodes[message.leader], self.nodes[message.target], message.offer.link
        rows = self._rows_of(leader, message)
        self.lose(self.mail.index(message))
        if node.half.keys() == {link.id}:
            node.half[link.id] = (*node.half[link.id][: message.offset], *message.rows[:count])
        if leader.leads and leader.term == message.offer.term and rows is not None:
            leader.broken[message.target] = link, rows
            self.broken += 1

    @staticmethod
    def _rows_of(leader, message):
        """Returns the rows of the offered file; None: it is not here any more."""
        link, rows = leader.broken.get(message.target, (None, None))
        return (
            rows if link is not None and link.id == message.offer.link.id else leader.files.get(message.offer.link.id)
        )

    def _take(self, message):
        if message.event is not None:
            self._answered(message)
        elif message.rows is not None:
            self._received(message)
        else:
            node = self.nodes[message.target]
            case = node.receiver.case_of(message.offer)
            if case.is_accepted:
                node.receiver = node.receiver.begun(message.offer)
                node.half = {message.offer.link.id: node.half.get(message.offer.link.id, ())}
                message = message._replace(offset=len(node.half[message.offer.link.id]))
                self.continued += message.offset > 0
            self._answer(message, case, OfferEvent.ACCEPT)

    def _received(self, message):
        node = self.nodes[message.target]
        begun = node.half.get(message.offer.link.id, ())
        if len(begun) < message.offset:  # the target has lost what it had
            node.receiver = node.receiver.abandoned(message.offer.link.id)
            self._answer(message, OfferCase.OVERLOADED, OfferEvent.ACK)
            return
        message = message._replace(rows=(*begun[: message.offset], *message.rows))
        own_id = next(self.ids)
        node.receiver, case = node.receiver.received(message.offer, own_id)
        if case is OfferCase.FAST_FORWARD:
            node.files[message.offer.link.id] = message.rows
        if case is OfferCase.MERGE:
            [link] = [link for link in node.chain.links if link.id == own_id]
            node.files[own_id] = tuple(row for row in message.rows if row.seq > link.after_seq)
        self._answer(message, case, OfferEvent.ACK)

    def _answer(self, message, case, accepted):
        self.seen[case] += 1
        event = accepted if case.is_accepted else OfferEvent[case.name]
        self.mail.append(message._replace(event=event, rows=None))

    def _answered(self, message):
        node = self.nodes[message.leader]
        before = node.targets.get(message.target)
        if not node.leads or node.term != message.offer.term or before is None:
            return
        self._advance(message.leader, message.target, message.number, message.event)
        after = node.targets[message.target]
        if before == after:
            return
        if message.event in (OfferEvent.ACK, OfferEvent.EXISTS):
            seq = max(message.offer.link.last_seq, node.acked.get(before.placement, 0))
            node.acked[before.placement] = seq
            self._catch_up(node, self.nodes[message.target])
        if message.event is OfferEvent.ACCEPT:
            rows = self._rows_of(node, message)
            if rows is None:  # it has retired, and was removed
                self._advance(message.leader, message.target, message.number, OfferEvent.FAILED)
                target = self.nodes[message.target]
                target.receiver = target.receiver.abandoned(message.offer.link.id)
            else:
                self.mail.append(message._replace(event=None, rows=rows[message.offset :]))

    def _advance(self, leader, target, number, event):
        node = self.nodes[leader]
        if node.leads and target in node.targets:
            node.chain, node.targets[target] = offering.advance(node.chain, node.targets[target], number, event)

    # The end.

    def heal(self):
        """All messages in flight are lost, one node leads, and all others catch up with it."""
        while self.mail:
            self.lose(0)
        self._lead([node for node in self.nodes if node.votes])
        [leader] = [number for number, node in enumerate(self.nodes) if node.leads and node.term == self.term]
        self.flush(leader)
        self.settle(leader)
        return leader

    @property
    def term(self):
        return max(node.term for node in self.nodes)

    def settle(self, leader):
        """All nodes follow ``leader`` until it has nothing to offer."""
        for number, node in enumerate(self.nodes):
            if number == leader:
                continue
            self.follow(number, leader)
            for _ in range(10 + 4 * len(self.nodes[leader].chain.links)):
                if not self.offer(leader, number):
                    break
                while self.mail:
                    self.deliver(0)
                    self.check()
            else:
                raise AssertionError("a target is offered segments for ever")
            assert node.last_seq == self.nodes[leader].last_seq, "a target stays behind"

    def check_converged(self, leader):
        """All nodes have the rows of the leader's history, and know each of its segments."""
        node = self.nodes[leader]
        for branch, seq in self.stable:
            assert seq <= node.last_seq, "a stable row is lost"
            assert branch_at(node.history, seq) == branch, "a stable row is lost"
        for other in self.nodes:
            assert puts(other.rows()) == self.expected(node.history, node.last_seq)

    def check_equal_chains(self, leader):
        """After the leader has compacted everything, all nodes have the same segments, and no other file."""
        node = self.nodes[leader]
        if node.chain.links:
            self._compact(node, node.chain.links, node.last_seq)
            self.finish_compaction(leader)
            self.settle(leader)
        for number in range(NODES):
            self.remove_files(number)
        for other in self.nodes:
            assert [link.id for link in other.chain.links] == [link.id for link in node.chain.links]
            assert other.files == node.files, "a file stays for ever, or differs"


def branch_at(history, seq):
    """The branch of a seq in a history, oldest first; None in an empty one."""
    return next((branch for branch, base in reversed(history) if base < seq), None)
