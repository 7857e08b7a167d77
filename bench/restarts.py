"""How long a start takes: from the start of the process to its ready line, after SIGKILL and after a clean stop.

    python bench/restarts.py [--quick] [--only single-1 ...] [--folder DIR]

The directories are made here, with a journal of single puts, batches, compressed values or publishes up to the
journal's bounds, of nothing but the entries of many partitions, or with partitions that were flushed. `tailrace serve`
is a process of its own, with its default settings. `--quick` takes a tenth of the records. Exit code 1 if a target is
missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from _report import Line, show
from _restarts.made import Load, make
from _server import Server
from tailrace_server.config import StorageConfig
from tailrace_server.upkeep.pace import GROWTH_SHARE
from tailrace_server.upkeep.policy import replay_share

# The target of any start, whatever was written.
READY_SECONDS_MAX = 5.0


def replay_s(partitions: int) -> float:
    """What the journal may cost a start at most, as it counts that itself: writers are slowed down before."""
    return StorageConfig().journal_replay_s * (1 + GROWTH_SHARE) * replay_share(partitions)


LOADS = (
    Load("single-1", 1, replay_s(1)),
    Load("single-256", 256, replay_s(256)),
    Load("single-4096", 4_096, replay_s(4_096)),
    Load("batches-256", 256, replay_s(256), rows=10),
    Load("values-256", 256, replay_s(256), value_bytes=4_096),
    Load("packed-256", 256, replay_s(256), value_bytes=16_384, packed=True),
    Load("published-256", 256, replay_s(256), rows=10, publish_every=1),
    Load("published-4-256", 256, replay_s(256), rows=10, publish_every=1, published=4),
    Load("mixed-4096", 4_096, replay_s(4_096), publish_every=100),
    Load("feeds-15", 4_096, 0.0, feeds=15),
    Load("feeds-10000", 1, replay_s(1 * 10_000), feeds=10_000),
    Load("segments-1024", 1_024, 0.0, segments=3),
    Load("segments-4096", 4_096, 0.0, segments=3),
)


def measure(folder: Path, load: Load, *, clean: bool) -> list[Line]:
    """Makes a directory, starts a node on it and ends it."""
    log = folder / "log"
    data = folder / f"{load.name}-{clean}"
    held = make(data, load, clean=clean)
    after = "a clean stop" if clean else "SIGKILL"
    with Server(data, log) as server:
        seconds = time.perf_counter() - server.started
        cpu = server.cpu_seconds()
    partitions = load.feeds * load.partitions
    what = f"{held.records:,} records ({held.bytes >> 20} MiB), {partitions:,} partitions, after {after}"
    return [
        Line(f"{what}: ready", seconds, "s", most=READY_SECONDS_MAX),
        Line("of it the node's processor time", cpu, "s"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the records")
    names = [load.name for load in LOADS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="LOAD")
    parser.add_argument("--folder", help="where the data lies meanwhile; the system's temporary folder by default")
    args = parser.parse_args()
    lines: list[Line] = []
    for load in (load for load in LOADS if load.name in args.only):
        if args.quick:
            load = load._replace(replay_s=load.replay_s / 10)
        print(f"restarts: {load.name} ...", file=sys.stderr, flush=True)
        for clean in (False, True):
            with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=args.folder) as name:
                found = measure(Path(name), load, clean=clean)
            show(found, load.name)
            lines += found
    sys.exit(0 if all(line.is_met for line in lines) else 1)


if __name__ == "__main__":
    main()
