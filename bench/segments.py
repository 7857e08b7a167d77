"""What a copy of a feed by segments costs: against a stream of the same rows, and against a bare sendfile.

    python bench/segments.py [--rows 2000000] [--repeats 3] [--folder DIR]

The node is `tailrace serve` in a process of its own, with its default settings. A history feed of 16 partitions gets
rows of 16 + 100 bytes that do not compress. All rows are flushed, and nothing is compacted, before anything is
measured. Then, in turns: the SDK's stream of all of them, `Feed.fetch` into an empty directory, and a bare sendfile of
the same files from a process of its own. Its receiver drops the bytes; or it does all that a copy needs, and nothing
else: it writes each file, with its checksum, and fsyncs it. All readers run in the bench's process.

At last the latency of single puts at level disk: alone, beside fetches by `tailrace fetch`, one after the other, and
beside bare sendfiles into files, which the node has nothing to do with. The files of the node are in the system's
cache. Exit code 1 if a target is missed.
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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import trio
import xxhash

import tailrace
from _report import Line, show
from _server import PROGRAM, Processor, Server, Stolen, at_rest, cpu_seconds_of

_KEY = "key-%012d"
_READ_BYTES = 1024 * 1024
_PUT_SECONDS = 5.0
_SENDER = """
import os, socket, sys, time
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    connection, _ = server.accept()
began = time.process_time()
for path in sys.stdin.read().split():
    with open(path, "rb") as file:
        offset, size = 0, os.fstat(file.fileno()).st_size
        while offset < size:
            offset += os.sendfile(connection.fileno(), file.fileno(), offset, size - offset)
connection.close()
print(time.process_time() - began)
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
    """Seconds of a bare sendfile of these files: dropped, or written to ``target``, verified and fsynced.

    Then the processor time of the sender.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _SENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    if target is not None:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
    with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as sock:
        began = time.perf_counter()
        process.stdin.write("\n".join(map(str, paths)))
        process.stdin.close()
        for path in paths:
            _receive(sock, path.stat().st_size, None if target is None else target / path.name)
        took = time.perf_counter() - began
    used = float(process.stdout.readline())
    process.wait()
    return took, used


def _receive(sock: socket.socket, nbytes: int, target: Path | None) -> None:
    """Receives one file, with as little as Python can do."""
    buffer, left, digest = memoryview(bytearray(_READ_BYTES)), nbytes, xxhash.xxh3_128()
    out = None if target is None else os.open(target, os.O_WRONLY | os.O_CREAT)
    while left:
        count = sock.recv_into(buffer[:left])
        assert count, "the sender has closed the connection"
        left -= count
        if out is not None:
            digest.update(buffer[:count])
            os.write(out, buffer[:count])
    if out is not None:
        os.fsync(out)
        os.close(out)


def _system_share(used: Processor) -> float:
    """The system's part of processor time, from 0 to 1."""
    return used.system / max(used.user + used.system, 0.01)


async def _puts(client: tailrace.Client, beside: Callable[[], object] | None) -> list[float]:
    """Seconds of single puts at level disk, for as long as ``beside`` is repeated in a thread."""
    feed, took = client.feed("puts"), []
    async with trio.open_nursery() as nursery:
        if beside is not None:
            nursery.start_soon(_repeat, beside)
        ends = time.perf_counter() + _PUT_SECONDS
        while (began := time.perf_counter()) < ends:
            await feed.put(b"key", bytes(100))
            took.append(time.perf_counter() - began)
        nursery.cancel_scope.cancel()
    return took


async def _repeat(function: Callable[[], object]) -> None:
    while True:
        await trio.to_thread.run_sync(function)


def _fetch_by_command(server: Server, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run([PROGRAM, "fetch", "orders", str(target), "--url", server.address], check=True, capture_output=True)


async def _latencies(client: tailrace.Client, server: Server, folder: Path, paths: list[Path]) -> list[Line]:
    await client.create_feed("puts", partitions=1)
    lines, p99_of = [], {}
    for name, beside in (
        ("alone", None),
        ("beside bare sendfiles", partial(_bare, paths, folder / "bare")),
        ("beside fetches", partial(_fetch_by_command, server, folder / "beside")),
    ):
        took = sorted(await _puts(client, beside))
        p50, p99_of[name] = median(took), took[len(took) * 99 // 100]
        lines.append(Line(f"a put {name}: p50", p50 * 1e3, "ms"))
        lines.append(Line(f"a put {name}: p99", p99_of[name] * 1e3, "ms"))
    lines.append(
        Line("p99 of a put, fetches / bare sendfiles", p99_of["beside fetches"] / p99_of["beside bare sendfiles"])
    )
    return lines


async def _measure(rows: int, repeats: int, folder: Path) -> list[Line]:
    times: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    own: dict[str, list[float]] = {}
    system: dict[str, list[float]] = {}  # the kernel's part of the node's time: a part of all of it
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
                    split = Processor.of(server.process.pid)
                    times.setdefault(name, []).append(await run())
                    cpu.setdefault(name, []).append(server.cpu_seconds() - before)
                    system.setdefault(name, []).append(_system_share(Processor.of(server.process.pid).since(split)))
                    own.setdefault(name, []).append(cpu_seconds_of(os.getpid()) - mine)
                for name, target in (("memory", None), ("files", folder / "bare")):
                    before = cpu_seconds_of(os.getpid())
                    seconds, used_seconds = _bare(paths, target)
                    times.setdefault(name, []).append(seconds)
                    cpu.setdefault(name, []).append(used_seconds)
                    own.setdefault(name, []).append(cpu_seconds_of(os.getpid()) - before)
            latencies = await _latencies(client, server, folder, paths)
        server.stop()
    took = {name: median(found) for name, found in times.items()}
    used = {name: median(found) for name, found in cpu.items()}
    share = {name: sum(found) / len(found) for name, found in system.items()}
    mega = nbytes / 1e6
    return [
        Line("bytes of the segments", mega, "MB"),
        Line("stream by columns", took["stream"], "s"),
        Line("stream by row objects", took["objects"], "s"),
        Line("fetch", took["fetch"], "s"),
        Line("fetch", mega / took["fetch"], "MB/s"),
        Line("bare sendfile, dropped", mega / took["memory"], "MB/s"),
        Line("bare sendfile into files, verified, fsynced", mega / took["files"], "MB/s"),
        Line("stream by row objects / fetch", took["objects"] / took["fetch"], least=8),
        Line("stream by row objects / bare sendfile, dropped", took["objects"] / took["memory"]),
        Line("stream by columns / fetch", took["stream"] / took["fetch"]),
        Line("fetch / bare sendfile, dropped", took["memory"] / took["fetch"], least=0.6),
        Line("fetch / bare sendfile into files", took["files"] / took["fetch"]),
        Line("the node's processor time, stream", used["stream"] / rows * 1e9, "ns a row"),
        Line("the node's processor time, fetch", used["fetch"] / rows * 1e9, "ns a row"),
        Line("the system's part of that, stream", share["stream"] * used["stream"] / rows * 1e9, "ns a row"),
        Line("the system's part of that, fetch", share["fetch"] * used["fetch"] / rows * 1e9, "ns a row"),
        Line("the bare sender's processor time", used["files"] / rows * 1e9, "ns a row"),
        Line("the node's own part, fetch / stream", _own(used, share, "fetch") / _own(used, share, "stream")),
        Line("the node's processor time, fetch / stream", used["fetch"] / used["stream"], most=1 / 20),
        Line("processor time, bare sender / node's stream", used["files"] / used["stream"]),
        Line("the client's processor time, fetch", median(own["fetch"]) / rows * 1e9, "ns a row"),
        Line("the bare receiver's processor time, files", median(own["files"]) / rows * 1e9, "ns a row"),
        *latencies,
    ]


def _own(used: dict[str, float], system: dict[str, float], name: str) -> float:
    """The seconds of the node outside of the system."""
    return used[name] * (1 - system[name])


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
