"""Point reads beside Redis: ``get`` and ``get_many`` with random keys of a large key space, GET and MGET with the same.

    python bench/reads.py [--rounds 5] [--keys 1000000] [--scale 1] [--only tree ...] [--readme]

Keys have 16 bytes, values 100 random ones. One process asks, and takes turns: a share of a question goes to Tailrace,
the same share to Redis, and the same to a bare echo. Processor time is that of this process and of the server, for a
key. Figures are medians of the rounds, ratios the medians of the rounds' ratios.

tree      rows in the node's write queues
segments  rows in segments, some of them in the node's cache of look-ups (128 MiB)
uncached  rows in segments, without that cache

``get`` asks for one key after the other by each of two clients: that for trio, and the one that blocks. The echo is a
server on trio that answers a message of a GET's length with one of a GOT's, and does nothing else; a client on trio
asks it, and one that blocks. The bare server has the rows in a dict and no trio: it checks a GET's frame and answers
with a GOT's. Its clients check the GOT, one of them on trio. So it takes what Python takes without what a node is.

A lone ``get`` of a row in the write queues is also asked by placement: where the scheduler puts client and server, with
both pinned to one processor, and with each on one of its own. A round trip between two processors wakes each of them
once, which takes as long as all that the programs do. Nobody decides where the scheduler puts a pair of processes.

--readme writes the section of bench/README.md. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import trio

import tailrace
import tailrace.blocking
from _placement import FREE, ONE, OWN, Placement, missing, own_processors, placed, placements, processor_of
from _report import Line, number, p50, p99, show
from _section import rows_of, setting, targets, write_section
from _server import Server, Stolen, at_rest, cpu_seconds_of, free_port
from tailrace.model import Level
from tailrace.wire.frames import header_check
from tailrace.wire.messages import lone_get

PLACES = ("tree", "segments", "uncached")
PLACED = "tree"  # the place whose lone gets are asked by placement
SIZES = (100, 1_000, 10_000)
_KEY, _VALUE_BYTES, _PARTITIONS = b"key-%012d", 100, 16
_LONE_COUNT, _KEYS_COUNT = 1_500, 40_000  # asked in each round
_WARM_COUNT = 100  # lone gets of each that do not count, in a placement
_LONE_SHARE, _TURNS = 50, 4  # lone gets in one turn; turns of each size of get_many
_LOAD_ROWS = 2_000
_GET_BYTES, _GOT_BYTES = 16 + 24 + 4 + 16, 16 + 8 + 40 + _VALUE_BYTES  # the frames of one key
_ECHO = f"""
import sys, trio
async def serve(stream):
    while (data := await stream.receive_some(65536)):
        while len(data) % {_GET_BYTES}:
            data += await stream.receive_some(65536)
        await stream.send_all(bytes({_GOT_BYTES}) * (len(data) // {_GET_BYTES}))
trio.run(trio.serve_tcp, serve, int(sys.argv[1]))
"""
_BARE = """
import os, select, socket, struct, sys, xxhash
asked, head = struct.Struct("<IBBHII16sBB2xII"), struct.Struct("<IBBHI")
got = struct.Struct("<I4xIIQQ16s")
check = xxhash.xxh3_64_intdigest
rows = {b"key-%012d" % number: os.urandom(100) for number in range(int(sys.argv[2]))}
listener, ready, socks = socket.create_server(("127.0.0.1", int(sys.argv[1]))), select.epoll(), {}
ready.register(listener, select.EPOLLIN)
while True:
    for number, _ in ready.poll():
        if number == listener.fileno():
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            socks[sock.fileno()] = sock
            ready.register(sock, select.EPOLLIN)
            continue
        sock = socks[number]
        data = sock.recv(16384)
        if not data:
            ready.unregister(sock)
            sock.close()
            continue
        _, _, _, _, id, sum, feed, _, _, _, _ = asked.unpack_from(data)
        assert check(data[:12]) & 0xFFFFFFFF == sum
        value = rows[data[asked.size:]]
        start = head.pack(got.size + len(value), 0x8B, 0, 0, id)
        end = check(start) & 0xFFFFFFFF
        sock.send(start + end.to_bytes(4, "little") + got.pack(1, len(value) + 1, 0, 1, 1, feed) + value)
"""
_BARE_GOT_BYTES = struct.calcsize("<IBBHII") + struct.calcsize("<I4xIIQQ16s")
_RATIO_MAX, _KEYS_PER_SECOND_MIN = 1.5, 200_000

# Asks for keys.
Ask: TypeAlias = Callable[[list[bytes]], Awaitable[object]]


class Asked(NamedTuple):
    """Seconds by the clock of each call; seconds of processor time of client and server, for a key.

    ``together``: the share of the times looked at when client and server were on one processor.
    """

    seconds: list[float]
    keys: int
    client: float
    server: float
    together: float

    @property
    def rate(self) -> float:
        """Keys a second."""
        return self.keys * len(self.seconds) / sum(self.seconds)


class Who(NamedTuple):
    """One that is asked: its name, the id of its server's process, and the call."""

    name: str
    pid: int
    ask: Ask


class Round(NamedTuple):
    """What was found by place, keys of a call and name; and of lone gets of rows in the write queues, by placement."""

    asked: dict[tuple[str, int, str], Asked]
    placed: dict[tuple[str, str], Asked]


async def _ask_in_turns(whom: Sequence[Who], asks: list[list[bytes]], turns: int) -> dict[str, Asked]:
    """Asks each of them the same, a share after the other."""
    spent: dict[str, tuple[list[float], list[float]]] = {who.name: ([], [0.0, 0.0, 0.0]) for who in whom}
    for turn in range(turns):
        share = asks[turn::turns]
        for name, pid, ask in (*whom[turn % len(whom) :], *whom[: turn % len(whom)]):
            seconds, processor = spent[name]
            before = time.process_time(), cpu_seconds_of(pid)
            for keys in share:
                begin = time.perf_counter()
                await ask(keys)
                seconds.append(time.perf_counter() - begin)
            processor[0] += time.process_time() - before[0]
            processor[1] += cpu_seconds_of(pid) - before[1]
            processor[2] += processor_of("self") == processor_of(pid)
    count, size = sum(map(len, asks)), len(asks[0])
    return {
        name: Asked(seconds, size, client / count, server / count, together / turns)
        for name, (seconds, (client, server, together)) in spent.items()
    }


async def _ask_alone(lone: Sequence[Who], asks: list[list[bytes]], placement: Placement) -> dict[str, Asked]:
    """Asks each of them for one key after the other, with client and servers placed."""
    with placed(placement, [who.pid for who in lone]):
        await _ask_in_turns(lone, asks[:_WARM_COUNT], 1)
        return await _ask_in_turns(lone, asks, max(1, len(asks) // _LONE_SHARE))


async def _round(whom: Sequence[Who], lone: Sequence[Who], keys: int, place: str, scale: float, seed: int) -> Round:
    rnd, found = random.Random(seed), Round({}, {})

    def some(count: int, size: int) -> list[list[bytes]]:
        return [[_KEY % rnd.randrange(keys) for _ in range(size)] for _ in range(count)]

    possible = placements(own_processors() or ())
    for placement in possible if place == PLACED else possible[:1]:
        asks = some(max(_LONE_SHARE, int(_LONE_COUNT * scale)), 1)
        for name, asked in (await _ask_alone(lone, asks, placement)).items():
            if placement.name == FREE:
                found.asked[place, 1, name] = asked
            if place == PLACED:
                found.placed[placement.name, name] = asked
    for size in SIZES:
        asks = some(max(_TURNS, int(_KEYS_COUNT * scale) // size), size)
        for name, asked in (await _ask_in_turns(whom, asks, _TURNS)).items():
            found.asked[place, size, name] = asked
    return found


def _rows(keys: int) -> Iterator[list[tuple[bytes, bytes]]]:
    for start in range(0, keys, _LOAD_ROWS):
        yield [(_KEY % i, os.urandom(_VALUE_BYTES)) for i in range(start, min(start + _LOAD_ROWS, keys))]


async def _fill(server: Server, keys: int) -> None:
    async with tailrace.connect(server.address) as client:
        feed = await client.create_feed("reads", partitions=_PARTITIONS)
        async with feed.writer() as writer:
            for rows in _rows(keys):
                for key, value in rows:
                    await writer.put(key, value)


@contextlib.contextmanager
def _process(command: list[str], folder: Path, port: int) -> Iterator[int]:
    """Runs a server until the body ends. Yields the id of its process once it listens."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None:
                sys.exit(f"{command[0]} did not start")
            time.sleep(0.02)
        yield process.pid
    finally:
        process.kill()
        process.wait()


@contextlib.asynccontextmanager
async def _peers(folder: Path, keys: int) -> Any:
    """Yields Redis with the same rows, if it is installed; and the echo, by two clients."""
    whom: list[Who] = []
    with contextlib.ExitStack() as stack:
        if program := shutil.which("redis-server"):
            import redis

            port = free_port()
            command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
            pid = stack.enter_context(_process(command, folder, port))
            client: Any = stack.enter_context(redis.Redis("127.0.0.1", port))
            for rows in _rows(keys):
                client.mset(dict(rows))

            async def ask_redis(asked: list[bytes]) -> None:
                found = [client.get(asked[0])] if len(asked) == 1 else client.mget(asked)
                assert None not in found

            whom.append(Who("Redis", pid, ask_redis))
        else:
            print("reads: Redis is left out. To have it: sudo apt install redis-server", file=sys.stderr)
        port = free_port()
        pid = stack.enter_context(_process([sys.executable, "-c", _ECHO, str(port)], folder, port))
        sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        message = bytes(_GET_BYTES)

        async def echo(_: list[bytes]) -> None:
            await stream.send_all(message)
            await stream.receive_some(65_536)

        async def echo_blocking(_: list[bytes]) -> None:
            sock.sendall(message)
            sock.recv(65_536)

        echoes = [Who("echo on trio", pid, echo), Who("echo, blocking client", pid, echo_blocking)]
        async with stream:
            yield [*whom, *echoes, *stack.enter_context(_bare(folder, keys))]


@contextlib.contextmanager
def _bare(folder: Path, keys: int) -> Iterator[list[Who]]:
    """Yields the bare server, by a client on trio and by one that blocks."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        pid = stack.enter_context(_process([sys.executable, "-c", _BARE, str(port), str(keys)], folder, port))
        socks = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(2)]
        for sock in socks:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        blocking, other = socks
        other.setblocking(False)
        feed_id = bytes(16)

        def check(data: bytes) -> bytes:
            assert header_check(data) == int.from_bytes(data[12:16], "little")
            return data[_BARE_GOT_BYTES:]

        async def ask_blocking(asked: list[bytes]) -> None:
            blocking.send(lone_get(feed_id, Level.DISK, asked[0], 0, 1))
            assert check(blocking.recv(65_536))

        async def ask(asked: list[bytes]) -> None:
            other.send(lone_get(feed_id, Level.DISK, asked[0], 0, 1))
            await trio.lowlevel.wait_readable(other)
            assert check(other.recv(65_536))

        yield [Who("bare, trio client", pid, ask), Who("bare, blocking client", pid, ask_blocking)]


@contextlib.asynccontextmanager
async def _node(server: Server) -> Any:
    """Yields the node, asked by two clients."""
    pid = server.process.pid
    async with tailrace.connect(server.address) as client:
        with tailrace.blocking.connect(server.address) as blocking:
            feed, blocking_feed = client.feed("reads"), blocking.feed("reads")

            async def get(asked: list[bytes]) -> None:
                assert await feed.get(asked[0]) is not None

            async def get_blocking(asked: list[bytes]) -> None:
                assert blocking_feed.get(asked[0]) is not None

            async def get_many(asked: list[bytes]) -> None:
                assert None not in await feed.get_many(asked)

            lone = [Who("trio", pid, get), Who("blocking", pid, get_blocking)]
            yield lone, Who("Tailrace", pid, get_many)


async def _measure(args: argparse.Namespace, folder: Path) -> list[Round]:
    rounds = [Round({}, {}) for _ in range(args.rounds)]
    data, log = folder / "data", folder / "log"
    async with _peers(folder, args.keys) as peers:
        options: dict[str, Sequence[str]] = {
            "tree": (),
            "segments": ("--set", "storage.flush_age_s=1"),
            "uncached": ("--set", "storage.read_cache_bytes=0"),
        }
        for place in PLACES:
            if place not in args.only and not (place == "segments" and "uncached" in args.only):
                continue
            with Server(data, log, options=options[place]) as server:
                if not (data / "filled").exists():
                    await _fill(server, args.keys)
                    (data / "filled").touch()
                async with _node(server) as (lone, many):
                    if place == "segments":
                        async with tailrace.connect(server.address) as client:
                            await at_rest(client, server)
                    if place in args.only:
                        for number in range(-1, args.rounds):  # the first one is to warm up
                            print(f"reads: {place}, round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
                            scale = args.scale if number >= 0 else args.scale / 4
                            whom = [many, *(peer for peer in peers if peer.name == "Redis")]
                            found = await _round(whom, [*lone, *peers], args.keys, place, scale, number)
                            if number >= 0:
                                rounds[number].asked.update(found.asked)
                                rounds[number].placed.update(found.placed)
                server.stop()
    return rounds


def _rate(rounds: list[Round], of: tuple[str, int, str]) -> float:
    return median(round.asked[of].rate for round in rounds)


def _ratio(pairs: Iterable[tuple[Asked, Asked]]) -> float:
    """Returns the median of the rounds' ratios of two p50."""
    return median(p50(one.seconds) / p50(other.seconds) for one, other in pairs)


def lines(rounds: list[Round]) -> list[Line]:
    """Returns the targets, as far as they were asked."""
    found = []
    for place in PLACES:
        for client in ("blocking", "trio"):
            of, to = (place, 1, client), (place, 1, "Redis")
            if of in rounds[0].asked and to in rounds[0].asked:
                bound = _RATIO_MAX if place == PLACED else None
                what = f"get by the {client} client, {place}: p50 to Redis GET's"
                ratio = _ratio((round.asked[of], round.asked[to]) for round in rounds)
                found.append(Line(what, ratio, most=bound))
        if place == PLACED:
            found += _placed_lines(rounds)
        for size in SIZES:
            if (place, size, "Tailrace") in rounds[0].asked:
                bound = _KEYS_PER_SECOND_MIN if place == "tree" and size == SIZES[-1] else None
                value = _rate(rounds, (place, size, "Tailrace"))
                found.append(Line(f"get_many of {size:,} keys, {place}: keys/s", value, least=bound))
    return found


def _placed_lines(rounds: list[Round]) -> list[Line]:
    """Returns the ratios with client and server pinned, beside those where the scheduler has put them."""
    found = []
    for placement in (ONE, OWN):
        for client, to, bound in (
            ("blocking", "Redis", _RATIO_MAX),
            ("trio", "Redis", _RATIO_MAX),
            ("blocking", "bare, blocking client", None),
            ("trio", "bare, trio client", None),
        ):
            if (placement, client) in rounds[0].placed and (placement, to) in rounds[0].placed:
                ratio = _ratio((round.placed[placement, client], round.placed[placement, to]) for round in rounds)
                whose = "Redis GET's" if to == "Redis" else "the bare server's"
                found.append(Line(f"get, {client}, {placement}: p50 to {whose}", ratio, most=bound))
    return found


def _figures(found: Sequence[Asked]) -> list[float]:
    """Returns the medians of rounds: p50 and p99 in µs, keys/s, processor time of client and server for a key in µs."""
    p50s, p99s = (median(p(asked.seconds) for asked in found) * 1e6 for p in (p50, p99))
    client, server = (median(getattr(asked, what) for asked in found) * 1e6 for what in ("client", "server"))
    return [p50s, p99s, median(asked.rate for asked in found), client, server]


_HEAD = ["who", "p50, µs", "p99, µs", "keys/s", "client, µs a key", "server, µs a key"]


def _table(rounds: list[Round]) -> list[list[str]]:
    rows = [["place", "keys a call", *_HEAD]]
    for place, size, name in rounds[0].asked:
        found = [round.asked[place, size, name] for round in rounds]
        rows.append([place, f"{size:,}", name, *map(number, _figures(found))])
    return rows


def _placed_table(rounds: list[Round]) -> list[list[str]]:
    """Returns the lone gets of rows in the write queues by placement."""
    rows = [["client and server are", *_HEAD, "together"]]
    for placement, name in rounds[0].placed:
        found = [round.placed[placement, name] for round in rounds]
        together = f"{median(asked.together for asked in found):.0%}"
        rows.append([placement, name, *map(number, _figures(found)), together])
    return rows


def _write_readme(rounds: list[Round], keys: int, set_by: str) -> None:
    head, *rows = _table(rounds)
    text = [f"Medians of {len(rounds)} rounds in turns, {keys:,} keys. {set_by}", "", *rows_of(head, rows), ""]
    head, *rows = _placed_table(rounds)
    if rows:
        seen = "Together: the share of the times looked at when both were on one processor."
        text += [f"One key of the {PLACED}, by placement. {seen}", "", *rows_of(head, rows), ""]
    write_section("reads.py", [*text, *targets(lines(rounds))])


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--scale", type=float, default=1.0, help="times the calls")
    parser.add_argument("--only", nargs="+", choices=PLACES, default=list(PLACES), metavar="PLACE")
    parser.add_argument("--readme", action="store_true", help="write the section of bench/README.md")
    args = parser.parse_args()
    stolen, begin, load = Stolen(), time.perf_counter(), [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="tailrace-reads-") as name:
        rounds = trio.run(_measure, args, Path(name))
    for table in (_table(rounds), _placed_table(rounds)):
        print()
        for row in table:
            print("  ".join(f"{cell:>16}" for cell in row))
    if PLACED in args.only and (reason := missing(own_processors())):
        print(f"reads: lone gets by placement are left out: {reason}", file=sys.stderr)
    found = lines(rounds)
    show(found, "targets")
    if args.readme:
        load.append(os.getloadavg()[0])
        _write_readme(rounds, args.keys, setting(load, stolen.share, time.perf_counter() - begin))
    sys.exit(0 if all(line.is_met for line in found) else 1)


if __name__ == "__main__":
    main()
