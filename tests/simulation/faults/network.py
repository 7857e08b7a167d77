"""Faults of the network between nodes and programs."""

from __future__ import annotations

import trio

from . import shapes


async def cut_program(faults):
    one = faults.random.choice(faults.world.programs).name
    faults.world.report.fault("cut", one)
    faults.network.cut(one, faults.machine().name)
    await trio.sleep(faults.random.choice((0.2, 2.0, 8.0)) * faults.random.random())
    faults.network.heal(one, faults.machine().name)


async def cut(faults):
    name, ways = shapes.chosen(faults.random, faults.world.names, faults.world.program_names)
    faults.world.report.fault(f"cut: {name}")
    faults.network.cut_ways(ways)
    await trio.sleep(faults.random.choice((0.2, 1.0, 3.0)) * faults.random.random())
    faults.network.heal_ways(ways)


async def bridge(faults):
    """Cuts all nodes from each other, but for one that all hear, and promotes one or two of them."""
    leader = await faults.world.operator.leader()
    if leader is None or len(faults.world.names) < 3:
        return
    faults.world.report.fault("cut: a bridge that lasts")
    others = [name for name in faults.world.names if name != leader]
    ways = shapes.bridge(faults.random.choice(others), faults.world.names)
    faults.network.cut_ways(ways)
    for _ in range(faults.random.choice((1, 1, 2))):
        await faults.world.operator.promote(faults.random.choice(others))
        await trio.sleep(2.0 * faults.random.random())
    faults.network.heal_ways(ways)


async def drop(faults):
    transports = list(faults.network.transports)
    if transports:
        faults.world.report.fault("connection dropped")
        faults.network.drop(faults.random.choice(transports))


async def late_packet(faults):
    """Holds up one connection between two nodes in one direction, from some byte on."""
    names = faults.world.names
    ways = [t.outgoing for t in faults.network.transports if set(t.outgoing.link) <= set(names)]
    if not ways:
        return
    faults.world.report.fault("late packet")
    pipe, left = faults.random.choice(ways), faults.random.randrange(faults.random.choice((1, 200, 2_000)))

    def passing(pipe, data):
        nonlocal left
        count = min(left, len(data))
        left -= count
        return count

    faults.network.hold_up(pipe, passing)
    await trio.sleep(faults.random.choice((0.2, 1.0, 3.0)) * faults.random.random())
    faults.network.deliver(pipe)


async def slow_network(faults):
    faults.world.report.fault("slow network")
    delays_s, seconds = faults.pace.slow_network_s
    faults.network.seconds_max = faults.random.choice(delays_s)
    await trio.sleep(seconds * faults.random.random())
    faults.network.seconds_max = 0.002


async def fragments(faults):
    faults.network.fragments = not faults.network.fragments


FAULTS = (cut_program, cut, bridge, drop, late_packet, slow_network, fragments)
