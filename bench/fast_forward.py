"""Measures a fast-forward: a received segment becomes a link of a partition's chain, whatever its rows.

    python bench/fast_forward.py [--rows 1000000] [--repeats 9] [--folder DIR]

The file is there, verified and durable, as a follower has it after a transfer. Measured is the rest: the segment is
opened, and the manifest that names it becomes durable. A segment of 1,000 rows is measured in turns with a large one.
The fsyncs of manifest and directories cost what the disk takes for them, whatever the segment is: the target is for
everything else. Exit code 1 if it is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
import trio

from _report import Line, show
from tailrace.block import Stamps, encode_block
from tailrace_server.config import Config
from tailrace_server.feeds.feed import info_of_request
from tailrace_server.node.node import Node
from tailrace_server.node.start import recover
from tailrace_server.runtime.host import Host
from tailrace_server.segment import NO_BASE, SegmentIdentity, SegmentWriter
from tailrace_server.upkeep.received_chain import ReceivedChain, install_received_chain, prepare_to_receive

_BLOCK_ROWS = 10_000
_SMALL_ROWS = 1_000
_MOST_MS = 5.0


def write_segment(path: str, feed_id: bytes, branch: bytes, id: bytes, rows: int) -> None:
    """Writes a segment of rows of 16 + 100 bytes, which do not compress."""
    host = Host()
    writer = SegmentWriter(
        host.disk,
        path,
        SegmentIdentity(feed_id, 0, branch, id, NO_BASE, (), True, False, 0, rows, 0),
    )
    random = np.random.default_rng(0)
    for begin in range(0, rows, _BLOCK_ROWS):
        count = min(_BLOCK_ROWS, rows - begin)
        values = random.bytes(100 * count)
        writer.add(
            encode_block(
                [b"key-%012d" % number for number in range(begin, begin + count)],
                [values[100 * number : 100 * (number + 1)] for number in range(count)],
                partition=0,
                stamps=Stamps(list(range(begin + 1, begin + count + 1)), [1] * count),
                compress=False,
            )
        )
    writer.finish()


class Took(NamedTuple):
    """The milliseconds of a fast-forward, and those of its fsyncs."""

    total: float
    synced: float


class TimedSyncs:
    """Counts the seconds that this process waits for fsyncs, while it is entered."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._calls = {name: getattr(os, name) for name in ("fsync", "fdatasync")}

    def __enter__(self) -> TimedSyncs:
        for name, call in self._calls.items():
            setattr(os, name, partial(self._timed, call))
        return self

    def __exit__(self, *error: object) -> None:
        for name, call in self._calls.items():
            setattr(os, name, call)

    def _timed(self, call: Callable[[int], None], descriptor: int) -> None:
        began = time.perf_counter()
        call(descriptor)
        self.seconds += time.perf_counter() - began


async def fast_forward(node: Node, syncs: TimedSyncs, folder: str, id: bytes, rows: int, number: int) -> Took:
    """Installs the segment ``id`` in a new feed's only partition."""
    info = info_of_request({"name": f"feed{number}", "feed_id": f"{number:032x}", "partitions": 1}, 1)
    branch = b"u" * 16
    feed = node.feeds.create(info, node.storage.journal, branch, 10_000)
    [partition] = feed.partitions
    source = os.path.join(folder, f"{number}.seg")
    write_segment(source, info.feed_id, branch, id, rows)
    await prepare_to_receive(node.storage, partition)
    path = node.storage.store.segment_path(info.feed_id, 0, id)
    shutil.move(source, path)
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)
    told = ReceivedChain(rows, (id,), partition.log, 0, 0, {"evicted_age_s": None, "branches": [], "entries": []}, {})
    began, before = time.perf_counter(), syncs.seconds
    await install_received_chain(node.storage, partition, told)
    took = Took(1e3 * (time.perf_counter() - began), 1e3 * (syncs.seconds - before))
    assert partition.high_seq == rows
    return took


async def measure(folder: str, rows: int, repeats: int) -> list[Line]:
    """Measures small and large segments in turns."""
    host = Host()
    config = Config(os.path.join(folder, "data"))
    host.disk.make_directory(config.data)
    node = recover(config, host)
    found: dict[int, list[Took]] = {_SMALL_ROWS: [], rows: []}
    with TimedSyncs() as syncs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.storage.committer.run)
            for repeat in range(repeats):
                for place, count in enumerate(found):
                    number = 1_000 + 2 * repeat + place
                    found[count].append(
                        await fast_forward(node, syncs, folder, number.to_bytes(16, "big"), count, number)
                    )
            nursery.cancel_scope.cancel()
    node.stop()
    lines = []
    for count, took in found.items():
        lines += [
            Line(f"fast-forward of {count:,} rows", median(each.total for each in took), "ms"),
            Line("  without its fsyncs", median(each.total - each.synced for each in took), "ms", most=_MOST_MS),
        ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--folder", help="where the files are; a temporary folder by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        lines = trio.run(measure, folder, arguments.rows, arguments.repeats)
    show(lines, "Fast-forward, median milliseconds")
    return 0 if all(line.is_met for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
