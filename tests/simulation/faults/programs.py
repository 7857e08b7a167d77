"""Faults of programs, and changes of the keys that they use."""

from __future__ import annotations


async def kill_follower(faults):
    """Kills a follower of one node; the first one is spared."""
    faults.world.report.fault("follower killed")
    follower = faults.random.choice(faults.world.followers[1:])
    follower.kill(faults.random.choice((0.1, 3.0, 8.0)) * faults.random.random())


async def kill_in_index(faults):
    """Lets a follower die before one of the next durable steps of its index. The death is reported when it comes."""
    faults.random.choice(faults.world.followers[1:]).index.steps.left = faults.random.randrange(20)


async def kill_another(faults):
    """Kills a program of one node that is no follower."""
    faults.world.report.fault("writer, consumer or looker killed")
    program = faults.random.choice([*faults.world.writers, *faults.world.others])
    program.kill(faults.random.choice((0.1, 3.0)) * faults.random.random())


async def kill_program(faults):
    """Kills any program of a set."""
    faults.world.report.fault("program killed")
    faults.random.choice(faults.world.programs).kill(faults.random.choice((0.1, 2.0)) * faults.random.random())


async def other_keys(faults):
    """Writes to some partitions only, and the others are quiet."""
    world = faults.world
    world.report.fault("other keys")
    partitions = range(world.plan.partitions)
    if world.plan.is_set:
        count = faults.random.randint(1, len(partitions))
    else:
        count = faults.random.choice((1, 1, 2, len(partitions)))
    world.keys.use_partitions(faults.random.sample(partitions, count))


FAULTS = (kill_follower, kill_in_index, kill_another, kill_program, other_keys)
