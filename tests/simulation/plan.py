"""The plan of a run: all that its seed decides before it begins, such as the number of nodes and the faults."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.model import failover as failover_logs
from tailrace_server.config import Failover
from tailrace_server.replication.member_changes import MEMBERS_MIN

if TYPE_CHECKING:
    from .stories.story import Story

# The number of nodes that stands for a set of two, three or five: the seed chooses.
ANY_SET = 0
# The ways of segments between nodes. "pull": followers far behind copy them. "push": the feed is in mode ``segment``.
# "switch": its mode changes all the time.
WAYS = ("pull", "push", "switch")
# The way that stands for one of them: the seed chooses.
ANY_WAY = "any"
ENTRIES_MAX = failover_logs.ENTRIES_MAX
# How long it may take, in simulated time, until everything is well again after the faults.
HEALING_SECONDS_MAX = 120.0


@dataclass(frozen=True)
class Plan:
    """The choices of one run.

    Attributes:
        story: The events that take the place of faults by chance; None: faults come by chance.
        profile: The kinds of faults that come, a key of `PROFILES`; "": the seed chooses.
        partitions: How many partitions the feed has that every program uses.
        retention: How that feed keeps its rows, "compact" or "history".
        faulty_seconds: How long faults come, in simulated time.
        may_force: Promotions may be forced.
        block_bytes: How large the blocks of compacted segments are; None: as in production.
        has_sink: A program publishes batches.
        in_parts: These batches come in parts.
        seals_at_quorum: Their stages are sealed at level quorum, so that the next leader can publish them.
        entries_max: How many entries a failover log keeps.
        has_copies: Programs fetch copies, in place of most others.
        way: How segments pass between nodes, with the faults of such transfers: one of `WAYS`; "": as it comes.
        incoming_max: How many segments a node receives at the same time from its leader.
        failover: Whether the members of a set choose another leader by themselves.
        has_groups: The members of a group share the feed, in place of most other programs.
        spares: How many nodes more there are, which are no members yet. Members are added and removed by chance then.
    """

    seed: int
    nodes: int
    story: Story | None = None
    profile: str = ""
    partitions: int = 4
    retention: str = "compact"
    faulty_seconds: float = 6.0
    may_force: bool = False
    block_bytes: int | None = None
    has_sink: bool = False
    in_parts: bool = False
    seals_at_quorum: bool = False
    entries_max: int = ENTRIES_MAX
    has_copies: bool = False
    way: str = ""
    incoming_max: int = 16
    failover: Failover = Failover.MANUAL
    spares: int = 0
    has_groups: bool = False

    def random_of(self, name):
        """Returns the generator of one part of the run: what one part draws changes no other part."""
        return random.Random(f"{self.seed} {name}")

    @property
    def is_set(self):
        """Whether the nodes elect a leader and replicate."""
        return self.nodes > 1

    @property
    def levels(self):
        """The levels at which the feed is read. In mode ``segment`` level quorum is refused."""
        return ("memory", "disk") if self.way == "push" else ("memory", "disk", "quorum")

    @property
    def has_short_logs(self):
        """Whether failover logs may drop entries in a run."""
        return self.entries_max < ENTRIES_MAX

    @property
    def names(self):
        """The machines of the nodes."""
        return [f"node-{number}" for number in range(1, 1 + self.nodes + self.spares)]

    @property
    def founders(self):
        """The machines whose nodes found the set."""
        return self.names[: self.nodes]

    @property
    def lost_disks_max(self):
        """How many disks a run may lose: those of a minority, however few members the set comes to have."""
        fewest = MEMBERS_MIN if self.spares else self.nodes
        return (fewest - 1) // 2

    @property
    def command(self):
        """The command that repeats the run."""
        if self.story is not None:
            return f"make simulate STORY={self.story.name} SEED={self.seed}"
        nodes = f" NODES={self.nodes}" if self.is_set else ""
        copies = " COPIES=1" if self.has_copies else ""
        way = f" SEGMENTS={self.way}" if self.way else ""
        groups = " GROUP=1" if self.has_groups else ""
        return f"make simulate{nodes}{copies}{way}{groups} SEED={self.seed}"


def plan_run(seed, nodes=1, story=None, profile="", copies=False, way="", groups=False):
    """Returns the plan of a run. A story says itself how many nodes it needs, and segments take three if one is given.

    ``way`` is one of `WAYS`, or `ANY_WAY`.
    """
    if story is not None:
        return Plan(
            seed,
            story.nodes,
            story,
            partitions=2,
            block_bytes=250,  # else one block takes all rows, and a compacted segment has no inside
            has_sink=story.has_sink,
            in_parts=story.in_parts,
            seals_at_quorum=story.seals_at_quorum,
            entries_max=story.entries_max,
            failover=story.failover,
            way=story.way,
            has_copies=story.has_copies,
        )

    def rnd(name):
        return random.Random(f"{seed} {name}")

    if groups:
        return _plan_of_groups(seed, nodes, rnd("groups"))
    if way:
        return _plan_of_segments(seed, nodes, way, rnd("segments"))
    if copies:
        return _plan_of_copies(seed, nodes, rnd("copies"))
    sinks = {"has_sink": rnd("sinks").random() < 0.5, "in_parts": rnd("parts").random() < 0.5}
    if nodes == 1:
        return Plan(seed, 1, retention=rnd("feed").choice(("compact", "compact", "compact", "history")), **sinks)
    of_set = rnd("set")
    may_force = of_set.random() < 0.25
    retention = of_set.choice(("compact", "compact", "history"))
    chosen = of_set.choice((3, 3, 3, 5, 5, 2))  # drawn in any case, so that NODES=3 repeats a run of three nodes
    chosen = chosen if nodes == ANY_SET else nodes
    spares = rnd("members").choice((0, 0, 1, 2))
    return Plan(
        seed,
        chosen,
        profile=profile,
        partitions=2,
        retention=retention,
        faulty_seconds=5.0,
        may_force=may_force,
        block_bytes=of_set.choice((None, 250, 1_000)),
        entries_max=rnd("short logs").choice((ENTRIES_MAX, ENTRIES_MAX, ENTRIES_MAX, 3)),
        failover=rnd("failover").choice((Failover.AUTO, Failover.MANUAL)),
        spares=0 if chosen < MEMBERS_MIN else spares,
        seals_at_quorum=rnd("seals").random() < 0.5,
        **sinks,
    )


def _plan_of_copies(seed, nodes, rnd):
    """Returns the plan of a run whose programs fetch copies."""
    retention = rnd.choice(("compact", "compact", "history"))
    has_sink = rnd.random() < 0.3
    if nodes == 1:
        return Plan(seed, 1, retention=retention, partitions=2, faulty_seconds=5.0, has_sink=has_sink, has_copies=True)
    return Plan(
        seed,
        3 if nodes == ANY_SET else nodes,
        partitions=2,
        retention=retention,
        faulty_seconds=5.0,
        may_force=rnd.random() < 0.15,
        block_bytes=rnd.choice((None, 250, 1_000)),
        has_sink=has_sink,
        has_copies=True,
    )


def _plan_of_groups(seed, nodes, rnd):
    """Returns the plan of a run whose programs are a group. Its nodes are a set, whose leader is the coordinator."""
    return Plan(
        seed,
        3 if nodes in (1, ANY_SET) else nodes,
        partitions=rnd.choice((1, 2, 4)),
        retention=rnd.choice(("compact", "history")),
        faulty_seconds=rnd.choice((5.0, 10.0)),
        block_bytes=rnd.choice((None, 250, 1_000)),
        failover=rnd.choice((Failover.AUTO, Failover.MANUAL)),
        has_groups=True,
    )


def _plan_of_segments(seed, nodes, way, rnd):
    """Returns the plan of a run that is about segments on their way between nodes."""
    chosen_way, chosen = rnd.choice(WAYS), rnd.choice((3, 3, 3, 3, 3, 3, 2, 5))  # drawn in any case
    way = chosen_way if way == ANY_WAY else way
    return Plan(
        seed,
        chosen if nodes in (1, ANY_SET) else nodes,
        partitions=rnd.choice((1, 2, 3)),
        retention=rnd.choice(("compact", "compact", "history")),
        faulty_seconds=5.0,
        may_force=rnd.random() < 0.1,
        block_bytes=rnd.choice((None, 250, 1_000)),
        has_sink=rnd.random() < 0.4 and way != "push",  # stages are at level quorum, which mode segment refuses
        in_parts=rnd.random() < 0.5,
        entries_max=rnd.choice((ENTRIES_MAX, ENTRIES_MAX, ENTRIES_MAX, 3)),
        way=way,
        incoming_max=rnd.choice((1, 2, 16)),
    )
