"""What a copy of a feed by segments costs: against a stream of the same rows, and against a bare sendfile.

    python bench/segments.py [--rows 2000000] [--repeats 3] [--folder DIR]

The node is `tailrace serve` in a process of its own, with its default settings. A history feed of 16 partitions gets
rows of 16 + 100 bytes that do not compress. Then, in turns: the SDK's stream of all of them, `Feed.fetch` into an
empty directory, and a bare sendfile of the same files from a process of its own, into memory and into files. All
readers run in the bench's process. The files are in the system's cache. A fetch fsyncs every file that it writes; so
does "into files". Exit code 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import trio

import tailrace
from _report import Line, show
from _server import Server, Stolen, at_rest, cpu_seconds_of

_KEY = "key-%012d"
_READ_BYTES = 1024 * 1024
_SENDER = """
import os, socket, sys, time
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    connection, _ = server.accept()
for path in sys.stdin.read().split():
    with open(path, "rb") as file:
        offset, size = 0, os.fstat(file.fileno()).st_size
        while offset < size:
            offset += os.sendfile(connection.fileno(), file.fileno(), offset, size - offset)
connection.close()
print(time.process_time())
"""


async def _fill(client: tailrace.Client, rows: int) -> None:
    feed = await client.create_feed("orders", partitions=16, retention="history")
    async with feed.writer(in_flight_bytes=64 * 1024 * 1024) as writer:
        for number in range(rows):
            await writer.put((_KEY % number).encode(), os.urandom(100))


async def _stream(client: tailrace.Client, rows: int) -> float:
    """Seconds of a stream of all rows; the columns of each event are made, as a reader of them would."""
    began, seen = time.perf_counter(), 0
    async with client.feed("orders").consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                seen += len(event.keys())
                event.values()
    assert seen == rows, f"the stream has {seen} rows"
    return time.perf_counter() - began


async def _objects(client: tailrace.Client, rows: int) -> float:
    """Seconds of a stream whose rows are taken one by one."""
    began, seen = time.perf_counter(), 0
    async with client.feed("orders").consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                for _ in event:
                    seen += 1
    assert seen == rows, f"the stream has {seen} rows"
    return time.perf_counter() - began


async def _fetch(client: tailrace.Client, target: Path) -> float:
    shutil.rmtree(target, ignore_errors=True)
    began = time.perf_counter()
    await client.feed("orders").fetch(target)
    return time.perf_counter() - began


def _bare(paths: list[Path], target: Path | None) -> tuple[float, float]:
    """Seconds of a bare sendfile of these files: into memory, or into one file that is fsynced.

    Then the processor time of the sender.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _SENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    buffer, left = bytearray(_READ_BYTES), sum(path.stat().st_size for path in paths)
    with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as sock:
        out = None if target is None else os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        began = time.perf_counter()
        process.stdin.write("\n".join(map(str, paths)))
        process.stdin.close()
        while left:
            count = sock.recv_into(buffer)
            assert count, "the sender has closed the connection"
            left -= count
            if out is not None:
                os.write(out, memoryview(buffer)[:count])
        if out is not None:
            os.fsync(out)
            os.close(out)
        took = time.perf_counter() - began
    used = float(process.stdout.readline())
    process.wait()
    return took, used


async def _measure(rows: int, repeats: int, folder: Path) -> list[Line]:
    times: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    own: dict[str, list[float]] = {}
    nbytes = 0
    with Server(folder / "node", folder / "log") as server:
        async with tailrace.connect(server.address) as client:
            await _fill(client, rows)
            await client.feed("orders").fetch(folder / "warm")  # flushes what is left
            await at_rest(client, server)
            await client.feed("orders").fetch(folder / "warm")
            paths = sorted((folder / "warm").rglob("*.seg"))
            nbytes = sum(path.stat().st_size for path in paths)
            for _ in range(repeats):
                for name, run in (
                    ("stream", lambda: _stream(client, rows)),
                    ("objects", lambda: _objects(client, rows)),
                    ("fetch", lambda: _fetch(client, folder / "copy")),
                ):
                    before, mine = server.cpu_seconds(), cpu_seconds_of(os.getpid())
                    times.setdefault(name, []).append(await run())
                    cpu.setdefault(name, []).append(server.cpu_seconds() - before)
                    own.setdefault(name, []).append(cpu_seconds_of(os.getpid()) - mine)
                for name, target in (("memory", None), ("files", folder / "bare")):
                    seconds, used_seconds = _bare(paths, target)
                    times.setdefault(name, []).append(seconds)
                    cpu.setdefault(name, []).append(used_seconds)
        server.stop()
    took = {name: median(found) for name, found in times.items()}
    used = {name: median(found) for name, found in cpu.items()}
    mega = nbytes / 1e6
    return [
        Line("bytes of the segments", mega, "MB"),
        Line("stream by columns", took["stream"], "s"),
        Line("stream by row objects", took["objects"], "s"),
        Line("fetch", took["fetch"], "s"),
        Line("fetch", mega / took["fetch"], "MB/s"),
        Line("bare sendfile into memory", mega / took["memory"], "MB/s"),
        Line("bare sendfile into files, fsynced", mega / took["files"], "MB/s"),
        Line("stream by row objects / fetch", took["objects"] / took["fetch"], least=8),
        Line("stream by columns / fetch", took["stream"] / took["fetch"]),
        Line("fetch / bare sendfile into memory", took["memory"] / took["fetch"], least=0.6),
        Line("fetch / bare sendfile into files", took["files"] / took["fetch"]),
        Line("the node's processor time, stream", used["stream"] / rows * 1e9, "ns a row"),
        Line("the node's processor time, fetch", used["fetch"] / rows * 1e9, "ns a row"),
        Line("the node's processor time, fetch / stream", used["fetch"] / used["stream"], most=1 / 20),
        Line("the bare sender's processor time", used["memory"] / rows * 1e9, "ns a row"),
        Line("the client's processor time, fetch", median(own["fetch"]) / rows * 1e9, "ns a row"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder")
    args = parser.parse_args()
    stolen = Stolen()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        lines = trio.run(_measure, args.rows, args.repeats, Path(folder))
    show(lines, f"a copy of {args.rows:,} rows by segments")
    print(f"taken by the machine's host for others: {stolen.share:.1%}")
    return 0 if all(line.is_met for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
