"""Stories of sets that fail over by themselves: shapes of networks, and nodes that die.

In each shape the leader changes at most twice a minute after the first ten seconds, no two leaders take writes, and a
majority whose members all reach each other has a leader that does. The members' clocks are simulated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio
from tests.processes.violation import Violation

from tailrace_server.config import Failover

from ..faults import shapes
from ..machine import End
from .stage import Stage
from .story import Story

# In simulated time. Programs reach no node meanwhile, since their writes would cost most of the time of the run.
SETTLING_SECONDS = 10.0
CALM_SECONDS = 30.0
CHANGES_MAX = 1
# Longer than the time after which a leader counts as silent, and shorter than twice that.
SILENT_SECONDS = 2.4
HEARD_SECONDS = 5.0


class Shape(NamedTuple):
    """A shape of the network, and what has to be true in it.

    Attributes:
        name: That of the story.
        ways: Returns the ways to cut, by the members: the leader first.
        nodes: How many members there are.
        stays: The leader keeps its majority, and no other one may come to lead, also after the network is healed.
        serves: A leader has to take writes.
    """

    name: str
    ways: Callable[[Sequence[str]], list[tuple[str, str]]]
    nodes: int = 3
    stays: bool = False
    serves: bool = True


def _pairs(*pairs):
    """Returns a function that cuts both ways between members, by their numbers."""
    return lambda names: [way for one, other in pairs for way in shapes.both(names[one], names[other])]


def _one(cut, number):
    """Returns a function that cuts a member, by its number, in the way of ``cut``."""
    return lambda names: cut(names[number], names)


SHAPES = [
    Shape("whole", lambda names: [], stays=True),
    Shape("leader_isolated", _one(shapes.isolated, 0)),
    Shape("leader_deaf", _one(shapes.deaf, 0)),
    Shape("leader_mute", _one(shapes.mute, 0)),
    Shape("follower_isolated", _one(shapes.isolated, 1), stays=True),
    Shape("follower_deaf", _one(shapes.deaf, 1), stays=True),
    Shape("follower_mute", _one(shapes.mute, 1), stays=True),
    Shape("leader_and_follower_cut", _pairs((0, 1)), stays=True),
    Shape("followers_cut", _pairs((1, 2)), stays=True),
    Shape("leader_to_follower_cut", lambda names: [(names[0], names[1])], stays=True),
    Shape("follower_to_leader_cut", lambda names: [(names[1], names[0])], stays=True),
    Shape("followers_cut_one_way", lambda names: [(names[1], names[2])], stays=True),
    Shape("ring_of_three", shapes.ring, serves=False),
    Shape("all_cut", lambda names: list(itertools.permutations(names, 2)), serves=False),
    Shape("leader_in_minority", lambda names: shapes.between(names[:2], names[2:]), nodes=5),
    Shape("leader_in_majority", lambda names: shapes.between(names[:3], names[3:]), nodes=5, stays=True),
    Shape("leader_sees_one_of_four", _pairs((0, 2), (0, 3), (0, 4)), nodes=5),
    Shape("leader_sees_two_of_four", _pairs((0, 3), (0, 4)), nodes=5, stays=True),
    # Here a majority needs the only member that still reaches the leader.
    Shape("leader_sees_one_of_three", _pairs((0, 2), (0, 3)), nodes=4),
    Shape(
        "leader_sees_one_of_three_and_one_is_gone",
        lambda names: [*_pairs((0, 2), (0, 3))(names), *shapes.isolated(names[4], names)],
        nodes=5,
    ),
    Shape("leader_isolated_of_five", _one(shapes.isolated, 0), nodes=5),
    Shape("leader_mute_of_five", _one(shapes.mute, 0), nodes=5),
]


def _story(shape):
    async def tell(world):
        await trio.sleep(0.3)
        names = Stage(world).all
        with _without_programs(world):
            ways = shape.ways(names)
            world.network.cut_ways(ways)
            began = _changes(world)
            await trio.sleep(SETTLING_SECONDS)
            before = _changes(world)
            await trio.sleep(CALM_SECONDS)
            world.report.calm(CALM_SECONDS, _changes(world) - before)
            _require_calm(_changes(world) - before)
            serving = _serving(world)
            if len(serving) > 1:
                raise Violation(f"{', '.join(serving)} take writes at the same time")
            if shape.serves and not serving:
                raise Violation("no leader takes writes, and a majority is together")
            world.network.heal_ways(ways)
            await trio.sleep(SETTLING_SECONDS)
            if shape.stays and _changes(world) > began:
                raise Violation("another leadership began, and the leader never lost its majority")
            _require_one(world)

    tell.__name__ = shape.name
    return Story(tell, nodes=shape.nodes, failover=Failover.AUTO)


class _without_programs:
    """Keeps programs from all nodes while the body runs."""

    def __init__(self, world):
        self._network = world.network
        self._ways = shapes.between(world.names, world.program_names)

    def __enter__(self):
        self._network.cut_ways(self._ways)

    def __exit__(self, *error):
        self._network.heal_ways(self._ways)


def _changes(world):
    return world.report.operations["a node leads"]


def _serving(world):
    """Returns the nodes that take writes."""
    up = [machine for machine in world.machines if machine.is_up]
    return [machine.name for machine in up if not machine.life.node.leaderships.system.refuses_writes]


def _require_calm(changes):
    if changes > CHANGES_MAX:
        raise Violation(f"{changes} times a node came to lead within {CALM_SECONDS:g} s in which nothing happened")


def _require_one(world):
    serving = _serving(world)
    if len(serving) != 1:
        raise Violation(f"{', '.join(serving) or 'no node'} takes writes, and nothing is cut")


async def leaders_die(world):
    """Each leader in turn is killed; another one takes writes, and the killed one follows it."""
    for end in (End.KILL, End.POWER, End.KILL):
        await trio.sleep(0.5)
        name = Stage(world).leader
        world.machine(name).kill(end)
        await trio.sleep(4.0)
        _require_one(world)
        world.machine(name).start()
        await world.machine(name).up()
        await trio.sleep(2.0)


async def all_restart(world):
    """All members crash at once. One of them leads after that."""
    await trio.sleep(0.5)
    for machine in world.machines:
        machine.kill(End.KILL)
    for machine in world.machines:
        machine.start()
    await trio.sleep(SETTLING_SECONDS)
    _require_one(world)


async def the_complete_one_leads(world):
    """A member that lacks rows and one that has them lose the leader, and come together later."""
    await trio.sleep(0.3)
    stage = Stage(world)
    leader, complete, behind = stage.three
    stage.cut_off(behind)
    await trio.sleep(1.5)
    with _without_programs(world):
        await trio.sleep(0.5)
        stage.cut_off(complete)
        world.machine(leader).kill(End.KILL)
        await trio.sleep(3.0)
        had, lacked = stage.high_seqs(complete), stage.high_seqs(behind)
        world.network.heal_ways(shapes.both(complete, behind))
        await trio.sleep(SETTLING_SECONDS)
        if had > lacked and _serving(world) != [complete]:
            raise Violation(f"{behind} leads, though {complete} had more of the rows and stood, too")
    stage.bring_back(complete)
    stage.bring_back(behind)
    world.machine(leader).start()


async def slow_leader(world):
    """A follower does not hear the leader for two seconds again and again. It gives up once, and waits longer then."""
    await trio.sleep(0.3)
    leader, follower, _ = Stage(world).three
    member, given_up = world.machine(follower).life.node.members[0], 0
    with _without_programs(world):
        for _ in range(5):
            followed = member.following
            world.network.cut_ways([(leader, follower)])
            await trio.sleep(SILENT_SECONDS)
            world.network.heal_ways([(leader, follower)])
            await trio.sleep(HEARD_SECONDS)
            given_up += member.following is not followed
    if given_up != 1:
        raise Violation(f"{follower} has given up {given_up} times a leader that was slow, and led all the time")
    if Stage(world).leader != leader:
        raise Violation(f"{leader} does not lead any more, and two of three heard it all the time")


STORIES = [
    *map(_story, SHAPES),
    *(Story(tell, failover=Failover.AUTO) for tell in (leaders_die, all_restart, the_complete_one_leads, slow_leader)),
]
