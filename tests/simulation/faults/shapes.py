"""The shapes that cuts between machines take. Pure: each gives the ways that are cut, (from a machine, to another)."""

from __future__ import annotations

import itertools


def both(one, other):
    """Both ways between two machines."""
    return [(one, other), (other, one)]


def between(some, others):
    """Nobody of the one side hears anybody of the other."""
    return [way for one, other in itertools.product(some, others) for way in both(one, other)]


def isolated(node, nodes):
    """A node alone on its side."""
    return between([node], [other for other in nodes if other != node])


def split(rnd, nodes):
    """Two sides, none of them empty."""
    some = rnd.sample(nodes, rnd.randint(1, len(nodes) - 1))
    return between(some, [node for node in nodes if node not in some])


def deaf(node, nodes):
    """A node hears nobody, and is heard."""
    return [(other, node) for other in nodes if other != node]


def mute(node, nodes):
    """A node hears everybody, and nobody hears it."""
    return [(node, other) for other in nodes if other != node]


def ring(nodes):
    """Each node is heard by the next one in a ring, and by no other; of two: only one hears the other."""
    following = dict(zip(nodes, nodes[1:] + nodes[:1], strict=True))
    ways = [way for way in itertools.permutations(nodes, 2) if following[way[0]] != way[1]]
    return ways or [(nodes[0], nodes[1])]


def bridge(node, nodes):
    """All hear a node, and it hears all; but the others do not hear each other."""
    return list(itertools.permutations([other for other in nodes if other != node], 2))


def chosen(rnd, nodes, clients):
    """A shape by its name, and its ways: among the nodes, or between one of them and the clients."""
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
