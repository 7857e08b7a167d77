"""The checks of one node: every moment of its history is known, so each answer is checked when it comes."""

from __future__ import annotations

import trio
from tests.processes.violation import Violation

from tailrace_server.partition.newest_row import newest_row

from ..sizes import EXPIRE_SECONDS
from .batches import check_last_batch
from .truth import Truth


class OneNodeChecks:
    """Compares the node and its programs with the `Truth`.

    Attributes:
        may_lose_batches: Whether a batch that was answered as published may be lost.
    """

    may_lose_batches = False

    def __init__(self, world):
        self._world = world
        self.truth = Truth(world.plan.partitions, world.report, in_parts=world.plan.in_parts)

    # The node

    def node_started(self, machine, node):
        """Compares a node that has just started with all that was acknowledged."""
        world = self._world
        if world.feed_id is not None:
            self.truth.restarted(
                node, world.feed_name, machine.starts, lost_power=machine.lost_power, may_be_clean=machine.may_be_clean
            )

    def feed_made(self):
        """Notes the rows of the feed from now on."""
        node, feed_name = self._node(), self._world.feed_name
        self.truth.restarted(node, feed_name, 1, lost_power=False, may_be_clean=False)

    def _node(self):
        [machine] = self._world.machines
        return machine.life.node

    # Programs

    def rolled_back(self, who, partition, detail, level=None):
        """Notes that a program was told to roll back."""
        self._world.report.rolled_back(who, partition, detail)

    def publish_asked(self, shares):
        """Notes that a batch is about to be published, by partition."""
        self.truth.asked_to_publish(shares)

    def publish_answered(self, batch, partitions, written):
        """Checks that a batch that was answered as published is in all of its partitions, at the seqs of the answer."""
        self.truth.published(batch, partitions, written)

    def stage_gone(self, batch, parts, failures, error):
        """Checks that a sealed stage is gone only because it is old, or because a call of the disk has failed."""
        [machine] = self._world.machines
        oldest = min(part.sealed_at for part in parts)
        is_old = trio.current_time() - oldest >= machine.config.storage.stage_age_s
        has_failed = any(part.failures != failures for part in parts)
        if not is_old and not has_failed and not self._was_clock_set:
            raise Violation(f"{batch}: a sealed stage is gone: {error}") from error

    @property
    def _was_clock_set(self):
        """Whether ages of stages mean nothing: they are seconds here, and a jump of the wall clock is an hour."""
        return self._world.report.faults["wall clock set"]

    async def stages_expired(self):
        """Waits until the node has no stage any more, unless its wall clock was set."""
        [machine] = self._world.machines
        if not self._was_clock_set:
            while not machine.is_up or machine.life.node.stages.statistics()[:2] != (0, 0):  # noqa: ASYNC110
                await trio.sleep(EXPIRE_SECONDS)

    # Copies

    def lasting_floors(self):
        """Returns the seq of each partition that a fetch from now on has to come to."""
        return {number: truth.acknowledged_on_disk for number, truth in self.truth.partitions.items()}

    def check_has(self, who, partition, log, seq, floors):
        """Checks that a copy up to ``seq`` has what was acknowledged at `lasting_floors`."""
        if seq < floors[partition]:
            raise Violation(f"{who}: the copy ends at {seq}, and {floors[partition]} was acknowledged before the fetch")

    def history_at(self, who, partition, log, seq):
        """Returns the rows of a copy's history up to ``seq``. A copy has durable rows only, which are never lost."""
        rows = self.truth.partitions[partition].rows
        if seq > len(rows) or (seq and log.branch_at(seq) not in self.truth.history.branches[partition].names(seq)):
            raise Violation(f"{who}: partition {partition} is at {seq} of {log}, and the node has {len(rows)} rows")
        return rows[:seq]

    def goes_on(self, partition, log, seq, later_log):
        """Returns whether the history of ``later_log`` has the row ``seq`` of ``log``."""
        return True

    # In the end

    async def leader_found(self):
        """Returns at once: the node leads as soon as it is up."""

    async def copies_level(self):
        """Returns at once: there is one copy."""

    def why_not_level(self):
        """Returns how far each follower is."""
        return "; ".join(
            f"{process.name}: {process.follower.status() if process.follower else 'not started'}"
            for process in self._world.followers
        )

    def compare(self):
        """Checks that every index equals the node, and that the node has all that was promised.

        Raises:
            Violation: An index, a look-up or a sink's last batch differs, or an acknowledged write is lost.
        """
        node = self._node()
        node.check()
        self.truth.judge()
        state = self.truth.state()
        for process in self._world.followers:
            held = {key: value for key, (_, value) in process.index.held().items()}
            wrong = sorted(key for key in held.keys() | state.keys() if held.get(key) != state.get(key))
            if wrong:
                raise Violation(
                    f"{process.name} ({process.index.kind}) differs from the node in {len(wrong)} keys: {wrong[:5]}"
                )
        self._check_look_ups(node, state)
        self._check_sinks(node)

    def _check_look_ups(self, node, state):
        """Checks that the node finds the newest row of each key."""
        partitions = node.feeds.named(self._world.feed_name).partitions
        for key in self._world.keys.all_keys():
            partition = partitions[self._world.partition_of(key)]
            partition.keys.catch_up(partition.tree, lambda: False)
            found = newest_row(partition, key)
            value = None if found is None else found.value
            if value != state.get(key):
                raise Violation(f"the node finds {value!r} for {key!r}, which is {state.get(key)!r}")

    def _check_sinks(self, node):
        """Checks the batch that each partition remembers as the last one of each sink."""
        for sink in self._world.sinks:
            for partition in node.feeds.named(self._world.feed_name).partitions:
                check_last_batch(sink.name, partition, self.truth.partitions[partition.id].runs)

    async def restart(self):
        """Stops the node cleanly and starts it again: it has the same rows, and no new branch."""
        await self._world.restart_all()
        self._node().check()
        self._check_sinks(self._node())
