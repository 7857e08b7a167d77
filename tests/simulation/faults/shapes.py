"""The shapes of cuts between machines. Each function returns the ways to cut, (from a machine, to another one)."""

from __future__ import annotations

import itertools


def both(one, other):
    """Returns both ways between two machines."""
    return [(one, other), (other, one)]


def between(some, others):
    """Cuts each machine of the one side from each of the other."""
    return [way for one, other in itertools.product(some, others) for way in both(one, other)]


def isolated(node, nodes):
    """Cuts a node from all others."""
    return between([node], [other for other in nodes if other != node])


def split(rnd, nodes):
    """Cuts the nodes into two sides, none of them empty."""
    some = rnd.sample(nodes, rnd.randint(1, len(nodes) - 1))
    return between(some, [node for node in nodes if node not in some])


def deaf(node, nodes):
    """Cuts the ways to a node: it hears no other, and all hear it."""
    return [(other, node) for other in nodes if other != node]


def mute(node, nodes):
    """Cuts the ways from a node: no other hears it, and it hears all."""
    return [(node, other) for other in nodes if other != node]


def ring(nodes):
    """Leaves a ring: each node is heard by the next one only. Of two nodes, one hears the other."""
    following = dict(zip(nodes, nodes[1:] + nodes[:1], strict=True))
    ways = [way for way in itertools.permutations(nodes, 2) if following[way[0]] != way[1]]
    return ways or [(nodes[0], nodes[1])]


def bridge(node, nodes):
    """Cuts all ways but those from and to ``node``."""
    return list(itertools.permutations([other for other in nodes if other != node], 2))


def chosen(rnd, nodes, clients):
    """Returns a shape's name, and its ways: among the nodes, or between one of them and the clients."""
    node = rnd.choice(nodes)
    shapes = {
        "one isolated": lambda: isolated(node, [*nodes, *clients]),
        "one isolated from nodes": lambda: isolated(node, nodes),
        "split": lambda: split(rnd, nodes),
        "one deaf": lambda: deaf(node, nodes),
        "one mute": lambda: mute(node, nodes),
        "a ring": lambda: ring(nodes),
        "a bridge": lambda: bridge(node, nodes),
        "one cut from clients": lambda: between([node], clients),
        "all cut": lambda: list(itertools.permutations(nodes, 2)),
        "one way": lambda: [tuple(rnd.sample(nodes, 2))],
    }
    name = rnd.choice(sorted(shapes))
    return name, shapes[name]()
