"""A model of a set whose disks are replaced and come back, and whose members change, with ``voters.py``'s decisions.

Directories hold rows, promises and records. Steps come in any order: elections with some of the members, writes,
acknowledgements, records that are told, disks that are exchanged and put back, changes of a voter, members that are
added and removed. A row is acknowledged once a majority of the leader's record holds it. `Lost` is raised if a leader
lacks an acknowledged row.
"""

import random
from dataclasses import dataclass, field, replace

from tailrace_server.replication.voters import (
    Stored,
    Voters,
    Waiting,
    next_departure,
    next_step,
    storing_of,
    why_no_step,
    why_not_yet,
)

NOTHING = Voters()


class Lost(AssertionError):
    """An acknowledged row is lost."""


@dataclass(frozen=True)
class Rules:
    """The rules of voters.py; a planted bug switches one of them off."""

    refuses_earlier_records: bool = True
    changes_one_seat: bool = True
    waits_until_stored: bool = True
    waits_until_ready: bool = True
    counts_voters_only: bool = True
    waits_until_held: bool = True
    adds_ready_ones: bool = True
    drops_one_seat: bool = True
    joining_ones_do_not_count: bool = True


ALL_RULES = Rules()
BUGS = {
    "a candidate with an earlier record gets promises": replace(Rules(), refuses_earlier_records=False),
    "a disk is exchanged in one step": replace(Rules(), changes_one_seat=False),
    "the next step does not wait until a majority has stored the last": replace(Rules(), waits_until_stored=False),
    "a seat is given to a directory that lacks rows of the one that left": replace(Rules(), waits_until_ready=False),
    "every directory counts": replace(Rules(), counts_voters_only=False),
}
# Of sets whose members change.
BUGS_OF_MEMBERS = {
    "a seat is dropped before a majority holds the rows": replace(Rules(), waits_until_held=False),
    "a seat is added for a directory that lacks rows": replace(Rules(), adds_ready_ones=False),
    "two seats are dropped in one step": replace(Rules(), drops_one_seat=False),
    "a member that is to join counts as if it had a seat": replace(Rules(), joining_ones_do_not_count=False),
}


@dataclass
class Directory:
    """The state of a directory; ``rows`` are (term, number). ``leads``: the term in which it leads, else 0."""

    id: bytes
    voters: Voters = NOTHING
    promised: int = 0
    rows: tuple = ()
    leads: int = 0
    acked: dict = field(default_factory=dict)  # the rows that others have acknowledged, in the present term
    ready: dict = field(default_factory=dict)  # by directory: (term, epoch) as of which it has all rows of the leader
    had: dict = field(default_factory=dict)  # by (term, epoch): how many rows this leader had when it made the record

    def learn(self, voters):
        """Stores a later record."""
        if voters.is_later(self.voters):
            self.voters = voters

    def promise(self, term):
        """Promises a term, and leads in no lower one."""
        if term > self.promised:
            self.promised, self.leads = term, 0


class Model:
    """A set, and what it has acknowledged."""

    def __init__(self, seats, seed, rules=ALL_RULES, sizes=()):
        """``sizes``: of the set, one after the other, if members are added and removed."""
        self.random = random.Random(seed)
        self.rules = rules
        self.made = 0
        self.sizes = list(sizes)
        self.resized = 0
        self.running = [self._directory() for _ in range(seats)]
        self.away = [[] for _ in range(seats)]
        founded = Voters(1, 1, tuple(each.id for each in self.running))
        for each in self.running:
            each.voters = founded
        self.acknowledged = ()
        self.changes = self.elections = 0
        self.written = 0

    def _directory(self):
        self.made += 1
        return Directory(self.made.to_bytes(16, "big"))

    def step(self):
        """Does one step, whichever is possible."""
        steps = [(self.elect, 2), (self.write, 4), (self.follow, 16), (self.tell, 3), (self.swap, 2), (self.change, 10)]
        if self.sizes:
            steps = [(self.elect, 1), (self.write, 3), (self.follow, 24), (self.tell, 2), (self.swap, 0.3)]
            steps += [(self.change, 8), (self.resize, 4), (self.depart, 8)]
        functions, weights = zip(*steps, strict=True)
        self.random.choices(functions, weights)[0]()

    def elect(self):
        """Lets a directory stand, asking some of the others."""
        own = self.random.choice(self.running)
        term = own.promised + 1 if self.random.random() < 0.5 else max(each.promised for each in self.running) + 1
        self.stand(own, term, [each for each in self.running if each is not own and self.random.random() < 0.6])

    def stand(self, own, term, others):
        """Lets a directory ask these others to promise ``term``."""
        if not own.voters.has(own.id):
            return
        own.promise(term)
        promised = [own]
        for other in others:
            if other.promised >= term:
                continue
            if self.rules.refuses_earlier_records and other.voters.is_later(own.voters):
                continue
            other.learn(own.voters)
            if other.voters.has(other.id) or not self.rules.counts_voters_only:
                other.promise(term)
                promised.append(other)
        voters = [each for each in promised if own.voters.has(each.id) or not self.rules.counts_voters_only]
        if len(voters) < own.voters.majority:
            return
        best = max(voters, key=lambda each: (each.rows[-1][0] if each.rows else 0, len(each.rows)))
        own.rows, own.leads, own.acked, own.ready = (*best.rows, (term, 0)), term, {}, {}
        own.voters = own.voters.led_in(term)
        own.had = {}
        self.recorded(own)
        self.elections += 1
        if best.rows[: len(self.acknowledged)] != self.acknowledged:
            raise Lost(f"the leader of term {term} has {best.rows}, and {self.acknowledged} was acknowledged")

    def leaders(self):
        """Returns the directories that lead: several, if some have not heard of a later term."""
        return [each for each in self.running if each.leads]

    def write(self):
        """Lets a leader accept a row."""
        for own in self.leaders()[:1] if self.random.random() < 0.5 else self.leaders():
            self.written += 1
            own.rows = (*own.rows, (own.leads, self.written))

    def follow(self):
        """Lets a directory copy the rows of a leader, or some of them, and acknowledge them."""
        for own in self.leaders():
            is_member = self.sizes and self.random.random() < 0.8  # rather than one that has left
            other = self.random.choice(self.members_of(own) if is_member else self.running)
            if other is own or (other.promised > own.leads and not self.takes_back(other, own)):
                continue
            self.copy(own, other, learns=other.promised > own.leads or self.random.random() < 0.7)

    def copy(self, own, other, *, learns=True):
        """Lets ``other`` follow the leader ``own``, and acknowledge all rows of it."""
        other.promised, other.leads = own.leads, 0
        if learns:
            other.learn(own.voters)
        other.rows = own.rows
        own.acked[other.id] = len(own.rows)
        own.ready[other.id] = (own.voters.term, own.voters.epoch)
        self._acknowledge(own)

    def _stored(self, own):
        others = {each.id: Stored(each.promised, each.voters) for each in self.running if each is not own}
        return Stored(own.promised, own.voters), others

    def takes_back(self, other, leader):
        """Whether a directory without a seat may follow a leader of a lower term than it has promised."""
        return not leader.voters.has(other.id) and not other.voters.is_later(leader.voters)

    def _holding(self, own):
        counted = own.voters.ids if self.rules.counts_voters_only else own.acked.keys() | own.voters.ids
        seqs = sorted((own.acked.get(id, 0) for id in counted - {own.id}), reverse=True)
        seqs = [len(own.rows), *seqs] if own.id in own.voters.ids else seqs
        if not self.rules.joining_ones_do_not_count:
            joining = {self.running[int(name.rpartition(":")[2]) - 1].id for name in own.voters.joining}
            seqs = sorted([*seqs, *(own.acked.get(id, 0) for id in joining)], reverse=True)
        return seqs[own.voters.majority - 1] if len(seqs) >= own.voters.majority else 0

    def _acknowledge(self, own):
        held = own.rows[: self._holding(own)]
        if not held or held[-1][0] != own.leads:
            return
        short, long = sorted((held, self.acknowledged), key=len)
        if long[: len(short)] != short:
            raise Lost(f"{held} and {self.acknowledged} were acknowledged")
        self.acknowledged = long

    def tell(self):
        """Lets a member tell its record to another one."""
        told, other = self.random.sample(self.running, 2)
        other.learn(told.voters)

    def swap(self):
        """Gives a member an empty disk, or one that it had before. The set mostly keeps a majority of its voters."""
        seat = self.random.randrange(len(self.running))
        latest = max((each.voters for each in self.running), key=lambda voters: (voters.term, voters.epoch))
        here = latest.ids & {each.id for each in self.running if each is not self.running[seat]}
        if len(here) < latest.majority and not (self.away[seat] and self.random.random() < 0.5):
            return
        if self.random.random() < 0.5 or not self.away[seat]:
            found = self._directory()
        else:
            found = self.away[seat].pop(self.random.randrange(len(self.away[seat])))
        self.running[seat].leads = 0
        self.away[seat].append(self.running[seat])
        self.running[seat] = found

    def change(self):
        """Lets a leader change a voter, if one waits."""
        for own in self.leaders():
            present = (own.voters.term, own.voters.epoch)
            waiting = {}
            for number, each in enumerate(self.members_of(own)):
                checks = self.rules.waits_until_ready if number < len(own.voters.seats) else self.rules.adds_ready_ones
                if each.id in own.ready or (not checks and number >= len(own.voters.seats)):
                    waiting[number] = Waiting(each.id, *(own.ready[each.id] if checks else present))
            is_forced = not self.rules.waits_until_stored
            if why_not_yet(own.id, own.leads, *self._stored(own), is_forced=is_forced):
                continue
            after = next_step(own.voters, waiting)
            if after is None:
                continue
            if not self.rules.changes_one_seat:
                seat = next(seat for seat, id in enumerate(after.seats) if id != own.voters.seats[seat])
                after = own.voters.with_seat(seat, waiting[seat].placement_id)
            else:
                assert not why_no_step(own.voters, after)
            own.voters = after
            self.recorded(own)
            self.changes += 1
            assert self.sizes or len(after.seats) == len(self.running)

    # Members

    def members_of(self, own):
        """Returns the directories of the members by the leader's record, in its order."""
        if not own.voters.is_named:
            return self.running[: len(own.voters.seats)]
        return [self.running[int(name.rpartition(":")[2]) - 1] for name in own.voters.members]

    def recorded(self, own):
        """Notes how many rows the leader has as of its present record."""
        own.had = {(own.voters.term, own.voters.epoch): len(own.rows)}

    def resize(self):
        """Lets a leader write down that a member is to join or to leave, until the set has the next size."""
        for own in self.leaders():
            voters = own.voters
            if voters.joining or voters.leaving or why_not_yet(own.id, own.leads, *self._stored(own), is_forced=False):
                continue
            if len(voters.seats) == self.sizes[0]:
                self.sizes = self.sizes[1:] or self.sizes
                self.resized += 1
            voters = voters.naming(tuple(f"m:{number + 1}" for number in range(len(voters.seats))))
            if len(voters.seats) < self.sizes[0]:
                self.running.append(self._directory())
                self.away.append([])
                voters = voters.with_joining(f"m:{len(self.running)}")
            elif len(voters.seats) > self.sizes[0]:
                voters = voters.with_leaving(self.random.choice(voters.names))
            if voters.epoch > own.voters.epoch:
                assert not why_no_step(own.voters, voters)
                own.voters = voters
                self.recorded(own)

    def depart(self):
        """Lets a leader drop the seat of a member that is to leave. A leader that is to leave gives up."""
        for own in self.leaders():
            stored = self._stored(own)
            if not own.voters.leaving or why_not_yet(own.id, own.leads, *stored, is_forced=False):
                continue
            if (
                own.voters.leaving[0] in own.voters.names
                and self.members_of(own)[own.voters.names.index(own.voters.leaving[0])] is own
            ):
                own.leads = 0
                continue
            had = own.had[own.voters.term, own.voters.epoch]
            is_held = self._holding(own) >= had or not self.rules.waits_until_held
            after = next_departure(own.voters, own.id, storing_of(own.id, *stored), is_held=is_held)
            if after is None:
                continue
            if not self.rules.drops_one_seat:
                others = [name for name, id in zip(after.names, after.seats, strict=True) if id != own.id]
                if len(others) > 1:
                    after = after.without(self.random.choice(others))._replace(epoch=after.epoch)
            else:
                assert not why_no_step(own.voters, after)
            own.voters = after
            self.recorded(own)
            self.changes += 1


def walk(seats, seed, rules=ALL_RULES, steps=400, sizes=()):
    """Returns a model after a walk. Raises Lost."""
    model = Model(seats, seed, rules, sizes)
    for _ in range(steps):
        model.step()
    return model
