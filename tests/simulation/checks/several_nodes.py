"""The checks of sets: most compare, after everything has healed, the recorded answers with the history that stands."""

from __future__ import annotations

import trio
from tests.processes.violation import Violation

from tailrace.link.address import parse_address

from ..plan import HEALING_SECONDS_MAX
from . import copies
from .batches import check_last_batch
from .histories import Histories, place_of, short_place
from .promises import Answer, Promises
from .published import Published
from .registers import Registers
from .votes import Votes

# If everything is well and no node leads for this long, a node is promoted.
LEADERLESS_SECONDS_MAX = 3.0
# Faults that may take one of two copies of a stage, or make a stage old at once.
STAGES_LOST_BY = (
    "disk lost",
    "old backup of a member",
    "disk of another cluster",
    "replaced disk is back",
    "wall clock set",
)


class SetChecks:
    """Compares the nodes of a set with each other, with all that was written, and with all that programs were told.

    Attributes:
        barriers: The program, the moment of the request, the acknowledgements before it and the positions after it, of
            each barrier that has returned.
    """

    def __init__(self, world):
        self._world = world
        self.histories = Histories(world.report)
        self.votes = Votes()
        self.promises = Promises(self.histories)
        self.published = Published(world.plan.in_parts)
        self.registers = Registers(world)
        self.barriers = []

    # Nodes

    def node_started(self, machine, node):
        """Notes the rows that the node has, and from now on those that it takes."""
        self.histories.attach(machine.name, node)
        self.votes.attach(machine.name, node)

    def feed_made(self):
        """Notes the rows of the feed from now on."""
        self.histories.look()
        self.votes.founded()

    # Programs

    @property
    def may_lose_batches(self):
        """Whether a batch that was answered as published may be lost."""
        return self.promises.forced_at is not None

    def place(self, partition):
        """Returns the name that a partition of the feed has on all nodes."""
        return self._world.feed_id, partition

    def check_was_written(self, who, partition, key, value):
        """Checks that a row that a program was given was written."""
        if (key, value) not in self.histories.places.get(self.place(partition), {}):
            raise Violation(
                f"{who} was given {key!r}: {value!r:.60} of partition {partition}, which no program has written"
            )

    def check_state(self, who, partition, state, position):
        """Checks that a program that has read a snapshot has a state of the feed that existed at its position."""
        history = self.histories.history(self.place(partition), position.log, position.seq)
        if None in history:
            return
        self.published.check_stands(who, partition, history)
        expected = {key: row.value for key, (_, row) in copies.newest(history).items()}
        wrong = sorted(key for key in state.keys() | expected.keys() if state.get(key) != expected.get(key))
        if wrong:
            raise Violation(
                f"{who} was shown a state at {partition}/{position.seq} that never was: {wrong[0]!r} is "
                f"{state.get(wrong[0])!r:.60}, not {expected.get(wrong[0])!r:.60}"
            )

    def rolled_back(self, who, partition, detail, level):
        """Checks that the program may be told to roll back."""
        report = self._world.report
        report.rolled_back(who, partition, detail)
        if self._world.plan.has_short_logs and detail == "to 0":  # the log has dropped entries
            return
        if level == "quorum" and self.promises.forced_at is None:
            report.violation = Violation(
                f"{who} is rolled back in partition {partition} {detail}, and was shown only rows that a majority had"
            )
            raise report.violation

    def publish_asked(self, shares):
        """Notes that a batch is about to be published, by partition."""
        self.published.asked(shares)

    def publish_answered(self, batch, partitions, written):
        """Notes that a batch was answered as published."""
        self.published.answered(batch, partitions, written)

    def stage_gone(self, batch, parts, failures, error):
        """Checks that stages at level quorum are gone only because of their age, of a disk or of an operator.

        Other stages are of the node that led when they were made, and another node may lead by now.
        """
        plan, faults = self._world.plan, self._world.report.faults
        age_s = self._world.machines[0].config.storage.stage_age_s
        is_old = trio.current_time() - min(part.sealed_at for part in parts) >= age_s
        has_failed = any(part.failures != failures for part in parts)
        is_excused = self.promises.forced_at is not None or any(faults[fault] for fault in STAGES_LOST_BY)
        if plan.seals_at_quorum and not (plan.spares or is_old or has_failed or is_excused):
            raise Violation(f"{batch}: a stage is gone that the sink had sealed at quorum: {error}") from error

    async def stages_expired(self):
        """Returns at once: stages of nodes that led before may stay."""

    # Copies

    def lasting_floors(self):
        """Returns (branch, seq) of all writes that were acknowledged at quorum by now, of each partition."""
        floors = {}
        for write in self.promises.writes:
            if write.answer is Answer.WRITTEN and write.level == "quorum":
                _, number = write.place
                floors.setdefault(number, []).append((write.versions.branch, write.versions.last_seq))
        return floors

    def check_has(self, who, partition, log, seq, floors):
        """Checks that a copy up to ``seq`` has what was acknowledged at `lasting_floors`."""
        if self.promises.forced_at is not None:
            return
        lineage = self.histories.lineage(self.place(partition), log)
        for branch, acknowledged in floors.get(partition, ()):
            if acknowledged > seq or not lineage.holds(branch, acknowledged):
                raise Violation(
                    f"{who}: the copy ends at {seq}, and {acknowledged} of branch {branch.hex()[:8]} was acknowledged "
                    "at quorum before the fetch"
                )

    def history_at(self, who, partition, log, seq):
        """Returns the rows of a copy's history up to ``seq``; None for a row that no node was seen to write."""
        if log:
            self.histories.log_seen(self.place(partition), log)
        return self.histories.history(self.place(partition), log, seq)

    def goes_on(self, partition, log, seq, later_log):
        """Returns whether the history of ``later_log`` has the row ``seq`` of ``log``."""
        if not seq:
            return True
        place = self.place(partition)
        branch = self.histories.true_branch(place, log.branch_at(seq), seq)
        return self.histories.lineage(place, later_log).holds(branch, seq)

    # Healing

    async def leader_found(self):
        """Waits until a node leads. If none leads again by itself, one is promoted."""
        while True:
            with trio.move_on_after(LEADERLESS_SECONDS_MAX):
                while not any(map(self._world.leads, self._world.machines)):  # noqa: ASYNC110 - it has no event
                    await trio.sleep(0.1)
                return
            world = self._world
            world.report.operation("no node leads again by itself")
            name = world.operator.random.choice(world.names)
            may_force = world.plan.may_force and world.operator.random.random() < 0.3
            await world.operator.promote(name, force=may_force)

    async def copies_level(self):
        """Waits until all copies of each partition have the same log and seq."""
        leaderless_s = 0.0
        while self.why_not_level():
            await trio.sleep(0.1)
            leaderless_s = 0.0 if any(map(self._world.leads, self._world.machines)) else leaderless_s + 0.1
            if leaderless_s > LEADERLESS_SECONDS_MAX:
                leaderless_s = 0.0
                await self.leader_found()

    def members(self):
        """Returns the machines of the members, by the latest record that any node has stored."""
        return [parse_address(name).host for name in self.votes.latest().members] or self._world.plan.founders

    def why_not_level(self):
        """Returns how the copies of the members differ; "": all have the same log and seq."""
        for machine in self._world.machines:
            if not machine.is_up:
                return f"{machine.name} is down"
            if machine.has_given_up:
                return f"{machine.name} has given up"
        leaders = [machine for machine in self._world.machines if self._world.leads(machine)]
        if len(leaders) != 1:
            said = [
                f"{m.name} {leadership.role.value} {leadership.term}: {m.life.node.members[0].progress}"
                for m, leadership in ((m, m.life.node.leaderships.system) for m in self._world.machines)
            ]
            return f"{len(leaders)} lead: {said}"
        voters = self.votes.latest()
        if voters.joining or voters.leaving:
            return f"{leaders[0].name} has not ended a change: {voters}"
        for machine in map(self._world.machine, self.members()):
            if not voters.has(machine.life.node.identity.placement_id):
                return f"the disk of {machine.name} has no seat: {voters}"
            why = copies.difference(leaders[0].life.node, machine.life.node)
            if why:
                return (
                    f"{leaders[0].name}, which leads in term {leaders[0].life.node.leaderships.system.term}, and "
                    f"{machine.name} ({machine.life.node.members[0].progress}): {why}"
                )
        return ""

    # In the end

    def compare(self):
        """Checks every promise against the history that stands.

        Raises:
            Violation: A promise is broken.
        """
        [leader] = [machine.life.node for machine in self._world.machines if self._world.leads(machine)]
        for machine in self._world.machines:
            copies.check_copy(machine.name, machine.life.node, self.histories)
        feed = leader.feeds.of_id(self._world.feed_id)
        partitions = {place_of(partition): partition for partition in feed.partitions}
        logs = {place: partition.log for place, partition in partitions.items()}
        high_seqs = {place: partition.high_seq for place, partition in partitions.items()}
        self.promises.judge(logs, high_seqs)
        for level, count in self.promises.lost.items():
            self._world.report.operations[f"write at {level} lost"] += count
        self._check_published(leader, logs, high_seqs)
        self._check_barriers(logs, high_seqs)
        self._check_followers(logs, high_seqs)
        self.registers.check(self.histories, self.promises.forced_at)
        for client in self._world.others:
            for feed_id in getattr(client, "dropped", ()):
                if feed_id in leader.feeds and self.promises.forced_at is None:
                    raise Violation(f"feed {feed_id.hex()} was dropped, and is there")

    def _check_published(self, leader, logs, high_seqs):
        """Checks that each batch is whole and once in each partition, and that the leader remembers the last one."""
        for place, log in logs.items():
            history = self.histories.history(place, log, high_seqs[place])
            runs = self.published.check(place, history, may_lose=self.may_lose_batches)
            for sink in self._world.sinks:
                check_last_batch(sink.name, leader.feeds.of_id(place[0]).partitions[place[1]], runs)

    def _check_followers(self, logs, high_seqs):
        state = {}
        for place, log in logs.items():
            for row in self.histories.history(place, log, high_seqs[place]):
                if row is not None and row.value is not None:
                    state[row.key] = row.value
                elif row is not None:
                    state.pop(row.key, None)
        for follower in self._world.followers:
            held = follower.index.state
            wrong = sorted(key for key in held.keys() | state.keys() if held.get(key) != state.get(key))
            if wrong:
                raise Violation(f"{follower.name} differs from the set in {len(wrong)} keys: {wrong[:5]}")

    def _check_barriers(self, logs, high_seqs):
        """Checks that each barrier returned with every earlier acknowledged write that still stands."""
        for who, _, floors, positions in self.barriers:
            for place, count in floors.items():
                lineage = self.histories.lineage(place, logs[place])
                told = self.promises.acknowledged[place][:count]
                standing = [(b, s) for b, s in told if s <= high_seqs[place] and lineage.holds(b, s)]
                if not standing:
                    continue
                branch, seq = max(standing, key=lambda it: it[1])
                position = positions.get(place[1])
                at = None if position is None else self.histories.lineage(place, position.log)
                if at is None or position.seq < seq or not at.holds(branch, seq):
                    raise Violation(
                        f"{who}: a barrier came back at {position and position[:2]}, {short_place(place)}/{seq} of "
                        f"branch {branch.hex()[:8]} had been acknowledged before it was asked for"
                    )

    async def restart(self):
        """Stops all nodes cleanly and starts them again, in three of ten runs: the set has the same rows."""
        world = self._world
        if world.random_of("end").random() < 0.7:
            return
        await world.restart_all()
        with trio.move_on_after(HEALING_SECONDS_MAX) as healing:
            await self.copies_level()
        if healing.cancelled_caught:
            raise Violation(f"{HEALING_SECONDS_MAX:g} s after all were started again: {self.why_not_level()}")
        for machine in world.machines:
            copies.check_copy(machine.name, machine.life.node, self.histories)
