"""How long do tests wait for the nodes of `tailrace.testing`?

Seconds from the request to a client's first acknowledged put: of the first node of a process, of later nodes, and of
sets of three at level quorum. And from a call of `failover` or `lose_writes`, without a body, to the next such put.
"""

import os
import statistics
import subprocess
import sys
import time

import tailrace
import tailrace.blocking
from tailrace.testing import node, node_set

NODES, SETS, FIRSTS = 40, 10, 5


def put(url, level):
    with tailrace.blocking.connect(url) as client:
        client.create_feed("shop", partitions=4, exist_ok=True).put(b"k", b"v", level=level)


def first():
    """Prints the seconds until the first node of this process has taken a put."""
    begin = time.perf_counter()
    with node() as made:
        put(made.url, "disk")
        print(time.perf_counter() - begin)


def measure():
    """Returns the seconds of each kind."""
    found = {"a node": [], "a set of three": [], "a failover": [], "a loss of writes": []}
    for _ in range(NODES):
        begin = time.perf_counter()
        with node() as made:
            put(made.url, "disk")
            found["a node"].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            with made.lose_writes():
                pass
            put(made.url, "disk")
            found["a loss of writes"].append(time.perf_counter() - begin)
    for _ in range(SETS):
        begin = time.perf_counter()
        with node_set() as made:
            put(made.url, "quorum")
            found["a set of three"].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            made.failover()
            put(made.url, "quorum")
            found["a failover"].append(time.perf_counter() - begin)
    return found


def main():
    begun = [
        subprocess.run([sys.executable, __file__, "first"], capture_output=True, check=True) for _ in range(FIRSTS)
    ]
    found = {"the first node": [float(done.stdout) for done in begun]}
    with node() as made:  # the first one waits for the imports
        put(made.url, "disk")
    found |= measure()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    for kind, seconds in found.items():
        print(f"{kind}: median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s of {len(seconds)}")


if __name__ == "__main__":
    first() if sys.argv[1:] == ["first"] else main()
