"""Measures a rebalance: one of 8 members of a group is killed, and others take over its part of 64 partitions.

    python bench/rebalance.py --rounds 5 --lease 10

Node and members are processes. Each member commits after each event, and tells each row once it is committed. The time
of a partition without an owner runs from the kill to the `Assigned` event of its next owner. Rows are written all the
time, and each has to be told exactly once.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import tailrace
from tailrace.testing.node import Node

PARTITIONS, MEMBERS = 64, 8
SECONDS_MAX = 120.0
MEMBER = """
import sys, time, tailrace, trio

async def main():
    async with tailrace.connect(sys.argv[1], retry_for=100) as client:
        async with client.feed("orders").consume(group="workers") as stream:
            async for event in stream:
                if isinstance(event, tailrace.Assigned):
                    print("assigned", time.monotonic(), *event.partitions, flush=True)
                elif isinstance(event, tailrace.Revoked):
                    print("lost" if event.lost else "revoked", time.monotonic(), *event.partitions, flush=True)
                await stream.commit()
                if isinstance(event, tailrace.Mutations):
                    print("rows", 0, *(key.decode() for key in event.keys()), flush=True)

trio.run(main)
"""


class Member:
    """A member in a process. A thread reads what it tells."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", MEMBER, url], stdout=subprocess.PIPE, text=True)
        self.owned: dict[int, float] = {}  # since when
        self.rows: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            kind, at, *words = line.split()
            if kind == "rows":
                self.rows.update(words)
            for partition in map(int, words) if kind != "rows" else ():
                if kind == "assigned":
                    self.owned[partition] = float(at)
                else:
                    self.owned.pop(partition, None)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def wait(condition, what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {SECONDS_MAX:g} s: {what}")
        time.sleep(0.02)


def measure(url: str, feed: tailrace.blocking.Feed, rounds: int) -> list[list[float]]:
    members = [Member(url) for _ in range(MEMBERS)]
    dead: list[Member] = []
    gaps, number = [], 0
    try:
        for _ in range(rounds):
            wait(lambda: all(len(member.owned) == PARTITIONS // MEMBERS for member in members), "equal shares")
            victim = members.pop(0)
            mine = set(victim.owned)
            at = time.monotonic()
            victim.kill()
            dead.append(victim)
            while len({p for member in members for p in member.owned}) < PARTITIONS:
                feed.put(b"%d" % number, b"v")
                number += 1
                if time.monotonic() - at > SECONDS_MAX:
                    raise SystemExit("the partitions have no owners")
            gaps.append(sorted(member.owned[p] - at for member in members for p in mine & member.owned.keys()))
            members.append(Member(url))
        told = sum((member.rows for member in members + dead), Counter())
        wait(lambda: len(sum((each.rows for each in members + dead), Counter())) >= number - rounds, "all rows")
        told = sum((member.rows for member in members + dead), Counter())
        twice = sum(count > 1 for count in told.values())
        print(f"{number} rows, {twice} told twice, {number - len(told)} committed by a member that died before it told")
    finally:
        for member in members:
            member.kill()
    return gaps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lease", type=float, default=10.0, help="group_lease_s of the node")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        node = Node(Path(directory) / "data", options=("--set", f"limits.group_lease_s={arguments.lease}"))
        node.start()
        try:
            with tailrace.blocking.connect(node.url) as client:
                feed = client.create_feed("orders", partitions=PARTITIONS)
                gaps = measure(node.url, feed, arguments.rounds)
        finally:
            node.stop()
    times = [each for found in gaps for each in found]
    print(f"{len(gaps)} rounds, a lease of {arguments.lease:g} s: {len(times)} partitions without an owner for")
    print(f"{statistics.median(times):.2f} s (median), {max(times):.2f} s (longest), {min(times):.2f} s (shortest)")


if __name__ == "__main__":
    main()
