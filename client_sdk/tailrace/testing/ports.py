"""Ports for nodes that a test starts, stops and starts again at the same address."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterable, Iterator

# Below what systems give to outgoing connections (32,768 and above on Linux): a port of that range is taken, while its
# server is down, by any connection that is made anywhere on the machine, a client's vain tries included.
_FIRST, _END = 12_000, 32_000
_WORKERS_MAX = 16


def _own_range() -> range:
    """Each process that runs tests has ports of its own: none is found free by two of them at once."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    count = (_END - _FIRST) // _WORKERS_MAX
    first = _FIRST + int(worker.removeprefix("gw")) % _WORKERS_MAX * count
    return range(first, first + count)


def _candidates() -> Iterator[int]:
    own = _own_range()
    # Another run of the tests on this machine begins elsewhere; in a run, no port comes twice for a long time.
    return itertools.islice(itertools.cycle(own), random.Random(os.getpid()).randrange(len(own)), None)


_ports = _candidates()


def free_port() -> int:
    """Returns a free port of 127.0.0.1 that neither an outgoing connection nor another test is given."""
    return next(filter(_is_free, _ports))


def free_port_before(distances: Iterable[int]) -> int:
    """Returns a port as ``free_port``, of which the ports in these distances are free, too."""
    distances = tuple(distances)
    return next(port for port in _ports if all(_is_free(port + distance) for distance in (0, *distances)))


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Returns this number of different ports."""
    return [free_port() for _ in range(count)]
