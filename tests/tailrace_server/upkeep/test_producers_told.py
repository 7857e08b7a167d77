"""A replica's producers, which come before their blocks: whatever crash, flush or leader comes in between.

The rows of a leader come in merged blocks, which do not tell who wrote them. Of what is held each resend is recognised,
and of what is not, none is.
"""

import random

import pytest
import trio

from tailrace.block import encode_block
from tailrace_server.manifest.producers import producers_to_json
from tailrace_server.partition.branching import begin_branch
from tailrace_server.partition.replica_apply import apply_block, apply_producers, settle_producers
from tailrace_server.state.producers import ResendVerdict
from tailrace_server.upkeep.rollback import roll_back

PRODUCERS = (7, 8, 9)
STEPS = 60
# Of the last 16 so many are looked for: a producer of whom a flush has none forgets those before.
CHECKED = 4


class Replica:
    """One partition, and the (producer, number, first seq, last seq) of all that it holds."""

    def __init__(self, engine, seed):
        self.engine = engine
        self.random = random.Random(seed)
        self.partition = engine.create()
        self.partition.needs_quorum = True
        self.held = []
        self.coming = []  # what the leader has told of, and not sent yet

    @property
    def now(self):
        return self.engine.clock.monotonic()

    def _next(self, known):
        producer = self.random.choice(PRODUCERS)
        number = 1 + max((n for p, n, _, _ in known if p == producer), default=0)
        first = 1 + (known[-1][3] if known else 0)
        return producer, number, first, first + self.random.randrange(2)

    def tell(self):
        """A leader's snapshot begins, in place of what was left of the last one."""
        settle_producers(self.partition, self.engine.node.storage.journal, self.now)
        known = list(self.held)
        for _ in range(self.random.randint(1, 6)):
            known.append(self._next(known))
        self.coming = known[len(self.held) :]
        results = {p: [[n, 0, first, last] for q, n, first, last in known if q == p][-16:] for p in PRODUCERS}
        value = {
            "evicted_age_s": None,
            "branches": [self.partition.log.branch.hex()],
            "entries": [[f"{p:016x}", found[-1][0], 0.0, found] for p, found in results.items() if found],
        }
        apply_producers(self.partition, value, known[-1][3], self.engine.node.storage.journal, self.now)

    def take(self):
        """The next block of the snapshot, of one write or of several."""
        if not self.coming:
            return
        count = self.random.randint(1, min(3, len(self.coming)))
        taken, self.coming = self.coming[:count], self.coming[count:]
        rows = taken[-1][3] - taken[0][2] + 1
        names = {"producer_id": taken[0][0], "producer_seq": taken[0][1]} if self.random.random() < 0.3 else {}
        names = names if count == 1 else {}
        block = encode_block([b"k"] * rows, [b"v" * 100] * rows, partition=0, compress=False, **names)
        stamped = block.stamped(taken[0][2], self.engine.clock.wall_us())
        apply_block(self.partition, stamped, self.engine.node.storage.journal, self.now)
        self.held += taken
        self.engine.flusher.note(self.partition)
        self.engine.sync(self.partition)

    def lead(self):
        """It is promoted, with what has come by now, and written to."""
        token = self.engine.host.randomness.token(16)
        begin_branch(self.partition, token, self.engine.node.storage.journal, now=self.now)
        self.coming = []
        self.check()
        for _ in range(self.random.randint(1, 3)):
            producer, number, first, _ = self._next(self.held)
            self.engine.put(self.partition, (b"k", b"w" * 100), producer=producer, number=number)
            self.held.append((producer, number, first, first))

    def kill(self):
        self.engine.kill()
        self.partition = self.engine.partition()
        self.partition.needs_quorum = True
        self.coming = []
        self.check()

    async def flush(self):
        """Up to where a majority has it."""
        if self.held:
            self.partition.set_quorum_seq(self.random.choice(self.held)[3])
        await self.engine.flusher.flush(self.partition)

    async def roll_back(self):
        if not self.held:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.engine.node.storage.committer.run)
            seq = await roll_back(
                self.engine.node.storage,
                self.partition,
                self.random.choice(self.held)[3],
                self.partition.log,
                self.engine.node.leaderships.system.on_shortfall,
            )
            nursery.cancel_scope.cancel()
        self.held = [write for write in self.held if write[3] <= seq]
        self.coming = []
        self.check()

    def check(self):
        assert self.partition.high_seq == (self.held[-1][3] if self.held else 0)
        for producer in PRODUCERS:
            writes = [write for write in self.held if write[0] == producer]
            for _, number, first, last in writes[-CHECKED:]:
                decision = self.partition.producers.decide(producer, number, resend=True, now=self.now)
                assert decision.verdict is ResendVerdict.DUPLICATE, (producer, number)
                assert decision.result[2:] == (first, last)
            following = writes[-1][1] + 1 if writes else 1
            decision = self.partition.producers.decide(producer, following, resend=True, now=self.now)
            assert decision.verdict is ResendVerdict.ACCEPT


@pytest.mark.parametrize("seed", range(12))
async def test_what_is_held_is_recognised_and_nothing_else(make_engine, seed):
    replica = Replica(make_engine(), seed)
    for _ in range(STEPS):
        step = replica.random.choices(
            ("tell", "take", "flush", "tend", "lead", "kill", "roll back"), (20, 40, 10, 10, 5, 10, 5)
        )[0]
        match step:
            case "tell":
                replica.tell()
            case "take":
                replica.take()
            case "flush":
                await replica.flush()
            case "tend":
                await replica.engine.flusher.pass_once()
            case "lead":
                replica.lead()
            case "kill":
                replica.kill()
            case "roll back":
                await replica.roll_back()
    replica.kill()


async def test_what_a_leader_before_has_told_of_seqs_that_others_have_is_void(make_engine):
    """What was flushed of the others lies below, and what is in the journal of them above."""
    replica = Replica(make_engine(), 0)
    while len(replica.coming) < 5:
        replica.tell()
    replica.take()
    led_from = len(replica.held)
    while len(replica.held) < led_from + 5:
        replica.lead()
    replica.partition.set_quorum_seq(replica.held[led_from][3])
    await replica.engine.flusher.flush(replica.partition)
    assert replica.partition.flushed_seq == replica.held[led_from][3]
    replica.kill()


async def test_what_was_told_stays_in_the_journal_until_all_of_it_is_flushed(make_engine):
    """Also after a start: the file with what was told is older than those with the last of the blocks."""
    replica = Replica(make_engine(), 0)
    while len(replica.coming) < 6:
        replica.tell()
    while replica.coming:
        replica.take()
    replica.kill()
    replica.partition.set_quorum_seq(replica.held[0][3])
    for _ in range(2):
        await replica.engine.flusher.pass_once()
    assert 0 < replica.partition.flushed_seq < replica.partition.high_seq
    replica.kill()


@pytest.mark.parametrize("restarts", [False, True])
async def test_what_is_told_of_flushed_rows_keeps_the_journal_for_a_manifest_only(make_engine, restarts):
    """A partition that gets no more rows would be flushed no more, and would keep the journal for ever."""
    replica = Replica(make_engine(), 0)
    while not replica.coming:
        replica.tell()
    while replica.coming:
        replica.take()
    replica.partition.set_quorum_seq(replica.partition.high_seq)
    await replica.engine.flusher.pass_once()
    assert replica.partition.flushed_seq == replica.partition.high_seq
    value = producers_to_json(replica.partition.producers, replica.partition.high_seq, replica.now)
    journal = replica.engine.node.storage.journal
    apply_producers(replica.partition, value, replica.partition.high_seq, journal, replica.now)
    if restarts:
        journal.sync()
        replica.kill()
    assert replica.partition.journal_references.oldest is not None
    assert replica.partition.journal_references.waits_for_manifest_only
    await replica.engine.node.storage.installer.write(replica.partition)
    assert replica.partition.journal_references.oldest is None
