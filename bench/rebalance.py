"""Measures a rebalance: one of 8 members of a group is killed, and others take over its part of 64 partitions.

    python bench/rebalance.py --rounds 5 --lease 10
    python bench/rebalance.py --rounds 5 --index sqlite
    python bench/rebalance.py --rounds 5 --index "host=/run/postgresql dbname=shop"

Node and members are processes. Each member commits after each event, and tells each row once it is committed. The time
of a partition without an owner runs from the kill to the `Assigned` event of its next owner. Rows are written all the
time, and each has to be told exactly once.

With ``--index`` the members fill one index, and each second victim is stopped and not killed: it goes on when others
have its partitions. The index notes each row that it stores, in the same transaction. So a row that is stored twice is
seen.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sqlite3
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
ROWS_TOGETHER = 20
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

# A member that fills a shared index. ``noted`` has each row that was stored.
INDEX_MEMBER = """
import sys, time, tailrace, trio
from tailrace.indexes import PostgresIndex, SQLiteIndex

class Noting:
    def _complete(self, connection):
        super()._complete(connection)
        connection.execute("CREATE TABLE IF NOT EXISTS noted (partition bigint, seq bigint)")

    def _store_mutations(self, connection, mutations):
        super()._store_mutations(connection, mutations)
        if rows := list(zip(mutations.partitions, mutations.seqs)):
            connection.executemany("INSERT INTO noted VALUES (?, ?)", rows)

class Postgres(Noting, PostgresIndex): pass
class SQLite(Noting, SQLiteIndex): pass

async def main():
    url, place = sys.argv[1:]
    index = Postgres(place) if "=" in place else SQLite(place)
    async with tailrace.connect(url, retry_for=100) as client:
        async with client.feed("orders").follow(index, group="workers") as follower:
            before = set()
            while True:
                now = {each.partition for each in follower.status().partitions}
                for kind, changed in (("assigned", now - before), ("revoked", before - now)):
                    if changed:
                        print(kind, time.monotonic(), *sorted(changed), flush=True)
                before = now
                await trio.sleep(0.01)

trio.run(main)
"""


class Member:
    """A member in a process. A thread reads what it tells."""

    def __init__(self, url: str, index: str | None) -> None:
        words = [MEMBER, url] if index is None else [INDEX_MEMBER, url, index]
        self.process = subprocess.Popen([sys.executable, "-c", *words], stdout=subprocess.PIPE, text=True)
        self.owned: dict[int, float] = {}  # since when
        self.rows: Counter[str] = Counter()
        self._rows_lock = threading.Lock()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            kind, at, *words = line.split()
            if kind == "rows":
                with self._rows_lock:
                    self.rows.update(words)
            for partition in map(int, words) if kind != "rows" else ():
                if kind == "assigned":
                    self.owned[partition] = float(at)
                else:
                    self.owned.pop(partition, None)

    def told(self) -> Counter[str]:
        """Returns how often each row was told by now."""
        with self._rows_lock:
            return self.rows.copy()

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


def query(index: str, sql: str) -> list[tuple[int, ...]]:
    """Asks the database of an index."""
    if "=" in index:
        import psycopg

        with psycopg.connect(index) as connection:
            return connection.execute(sql).fetchall()
    with contextlib.closing(sqlite3.connect(index)) as connection:
        return connection.execute(sql).fetchall()


def tell_index(index: str, number: int) -> None:
    """Prints how often the rows of the index were stored."""
    wait(lambda: query(index, "SELECT count(*) FROM items") == [(number,)], "all rows in the index")
    [(stored, different)] = query(
        index, "SELECT count(*), (SELECT count(*) FROM (SELECT DISTINCT partition, seq FROM noted) AS seen) FROM noted"
    )
    print(f"{number} rows, {different} different ones were stored in the index, {stored - different} of them again")


def measure(url: str, feed: tailrace.blocking.Feed, rounds: int, index: str | None) -> list[list[float]]:
    members = [Member(url, index) for _ in range(MEMBERS)]
    dead: list[Member] = []
    gaps, number = [], 0
    try:
        for round in range(rounds):
            wait(lambda: all(len(member.owned) == PARTITIONS // MEMBERS for member in members), "equal shares")
            victim = members.pop(0)
            mine = set(victim.owned)
            at = time.monotonic()
            is_stopped = index is not None and round % 2 == 1
            if is_stopped:
                victim.process.send_signal(signal.SIGSTOP)
            else:
                victim.kill()
                dead.append(victim)
            while len({p for member in members for p in member.owned}) < PARTITIONS:
                feed.write([tailrace.Put(b"%d" % each, b"v") for each in range(number, number + ROWS_TOGETHER)])
                number += ROWS_TOGETHER
                if time.monotonic() - at > SECONDS_MAX:
                    raise SystemExit("the partitions have no owners")
            gaps.append(sorted(member.owned[p] - at for member in members for p in mine & member.owned.keys()))
            if is_stopped:
                victim.process.send_signal(signal.SIGCONT)
                members.append(victim)
            else:
                members.append(Member(url, index))
        if index is not None:
            tell_index(index, number)
            return gaps

        def told_rows() -> Counter[str]:
            return sum((member.told() for member in members + dead), Counter())

        wait(lambda: len(told_rows()) >= number - rounds * ROWS_TOGETHER, "all rows")
        told = told_rows()
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
    parser.add_argument("--index", help="a shared index: sqlite, or the conninfo of an empty PostgreSQL database")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        index = str(Path(directory) / "index.db") if arguments.index == "sqlite" else arguments.index
        node = Node(Path(directory) / "data", options=("--set", f"limits.group_lease_s={arguments.lease}"))
        node.start()
        try:
            with tailrace.blocking.connect(node.url) as client:
                feed = client.create_feed("orders", partitions=PARTITIONS)
                gaps = measure(node.url, feed, arguments.rounds, index)
        finally:
            node.stop()
    times = [each for found in gaps for each in found]
    print(f"{len(gaps)} rounds, a lease of {arguments.lease:g} s: {len(times)} partitions without an owner for")
    print(f"{statistics.median(times):.2f} s (median), {max(times):.2f} s (longest), {min(times):.2f} s (shortest)")


if __name__ == "__main__":
    main()
