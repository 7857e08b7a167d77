"""Random lives of a `World`, each decided by a seed: what a failover may meet, in proportions that make it meet it."""

import contextlib
import random
from unittest import mock

from tests.tailrace_server.chain.world import NODES, World

from tailrace.model import failover
from tailrace_server.chain import link, receiving

# Small bounds are reached soon: entries of a failover log, included ids, segments that are received.
BOUNDS = ((failover, "ENTRIES_MAX", 3), (link, "INCLUDED_IDS_MAX", 4), (receiving, "INCOMING_MAX", 2))
STEPS = 100
# Each step of a life, and how often it comes.
WEIGHTS = {
    "write": 20,
    "compact": 15,
    "finish": 5,
    "remove": 8,
    "offer": 15,
    "replicate": 20,
    "deliver": 15,
    "repeat": 4,
    "lose": 5,
    "retry": 6,
    "follow": 6,
    "promote": 4,
    "restart": 2,
    "replace": 1,
    "copy": 3,
    "restore": 3,
}


@contextlib.contextmanager
def small_bounds():
    with contextlib.ExitStack() as stack:
        for module, name, value in BOUNDS:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def step(world, rng):
    """One step of a life."""
    node, other = rng.randrange(NODES), rng.randrange(NODES)
    leaders = [number for number, one in enumerate(world.nodes) if one.leads]
    leader = rng.choice(leaders) if leaders else node
    match rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]:
        case "write":
            for _ in range(rng.randint(1, 4)):
                world.write(leader, rng.choice("abcd"), rng.choice([None, 1, 2, 3]))
            if rng.random() < 0.8:
                world.flush(leader)
        case "compact":
            world.begin_compaction(leader, rng.choice([0, 1, 1, 2, 2]), rng.choice([2, 2, 3, 5]))
            if rng.random() < 0.5:
                world.finish_compaction(leader)
        case "finish":
            world.finish_compaction(leader)
        case "remove":
            world.remove_files(node)
        case "offer":
            world.offer(leader, other)
        case "replicate":
            world.retry(leader, other)
            for _ in range(rng.choice([2, 4, 8, 30])):
                if not world.mail and not world.offer(leader, other):
                    break
                world.deliver(len(world.mail) - 1)
        case "deliver":
            world.deliver(rng.randrange(100))
        case "repeat":
            world.deliver(rng.randrange(100), again=True)
        case "lose":
            world.lose(rng.randrange(100), noticed=rng.random() < 0.7)
        case "retry":
            world.retry(leader, other)
        case "follow":
            if rng.random() < 0.5:
                world.follow(other, leader)
            else:
                for number in range(NODES):
                    world.follow(number, leader)
        case "promote":
            world.promote(rng.sample(range(NODES), rng.choice([2, 2, 3])))
        case "restart":
            world.restart(node)
        case "replace":
            world.replace_disk(node)
        case "copy":
            world.copy_disk(node)
        case "restore":
            world.restore_copy(node)


def live(seed, steps=STEPS):
    """A life, checked after each step, and its end. Returns the world."""
    rng = random.Random(seed)
    world = World()
    with small_bounds():
        world.promote([0, 1])
        for number in range(NODES):
            world.follow(number, 0), world.follow(number, 1)
        for _ in range(steps):
            step(world, rng)
            world.check()
        leader = world.heal()
        world.check()
        world.check_converged(leader)
        world.check_equal_chains(leader)
        world.check()
        world.check_converged(leader)
    return world
