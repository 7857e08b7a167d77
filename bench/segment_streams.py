"""One consumer of what a node has in segments, beside its own decoding of the same frames from memory.

    python bench/segment_streams.py [--rounds 5] [--rows 600000] [--only "16 + 100 bytes" ...] [--folder DIR] [--readme]

The node is `tailrace serve` in a process of its own, with its default settings. Each case is a history feed whose rows
are all in segments, at rest. In each round, in turns, the consumer, a process of its own,

- decodes the blocks of the feed from memory;
- has the session of a consumer take the bytes of a stream from memory, without a copy;
- reads the feed through a stream to "now";
- reads the same blocks from a bare sender: a process that reads them from a file, sums them as a node does, and sends
  them. The consumer receives each block into one buffer and decodes it, which is the least that a socket adds;
- has the session take the bytes of a stream from a bare sender, in a loop that receives and does nothing else. It has
  the buffers of a stream, and keeps the keys for rollbacks. It asks for nothing, grants no credit, and has no trio:
  no client with this session can be faster.

All five check each block, and take keys and values as columns, or each row as an object. Rates are by the clock.
Processor times are for a row: of the consumer, and of the node or the bare sender of blocks. What the consumer's
processor needs for its decoding, to what it needs in all, bounds the ratio, if the node is not slower. `cold` has the
files dropped from the page cache before each stream, and those of the bare sender, too. Figures are medians of the
rounds, ratios are medians of the ratios of the rounds.

--readme writes the table into bench/README.md. Exit code 1 if a target is missed. Needs Linux.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import trio

import tailrace
from _bare_sender import BareSender
from _replicas.nodes import flush
from _report import Line, number, show
from _server import Server, Stolen, at_rest, cpu_seconds_of
from _session_replay import Recorded
from tailrace.block import Block
from tailrace.consuming.events import Mutations

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- by bench/segment_streams.py --readme: begin -->", "<!-- by bench/segment_streams.py: end -->"
_KEY = b"key-%012d"
# The files of the bare sender: the blocks, and what the node sends for a stream of them.
BLOCKS, FRAMES = "blocks", "frames"
_WAYS = ("columns", "rows")


class Case(NamedTuple):
    """A feed, and how its files lie."""

    name: str
    feed: str
    value_bytes: int = 100
    partitions: int = 1
    is_random: bool = True
    share: float = 1.0  # of --rows
    is_cold: bool = False
    target: float | None = None


CASES = (
    Case("16 + 100 bytes", "usual", target=1.0),
    Case("the same, cold", "usual", is_cold=True),
    Case("the same, 8 partitions", "eight", partitions=8),
    Case("the same, 64 partitions", "many", partitions=64),
    Case("16 + 10 bytes", "small", value_bytes=10),
    Case("16 + 4,096 bytes", "large", value_bytes=4096, share=0.1),
    Case("16 + 100 bytes of text, compressed", "text", is_random=False),
)


class Way(NamedTuple):
    """One way to get the rows, in one round: rows a second, and ns of processor for a row.

    ``opening_ms`` passed by the clock until the stream was open.
    """

    rate: float
    consumer_ns: float
    sender_ns: float = 0.0
    opening_ms: float = 0.0


class Found(NamedTuple):
    """Of one round."""

    decoding: Way
    session: Way
    bare: Way
    received: Way
    stream: Way


async def _fill(client: tailrace.Client, server: Server, case: Case, rows: int) -> None:
    feed = await client.create_feed(case.feed, partitions=case.partitions, retention="history")
    values = _values(case)
    async with feed.writer(in_flight_bytes=64 * 1024 * 1024) as writer:
        for row in range(rows):
            await writer.put(_KEY % row, next(values))
    await flush(server, case.feed)
    await at_rest(client, server)


def _values(case: Case) -> Iterator[bytes]:
    if case.is_random:
        while True:
            data = memoryview(os.urandom(1000 * case.value_bytes))
            yield from (bytes(data[at : at + case.value_bytes]) for at in range(0, len(data), case.value_bytes))
    for row in itertools.count():
        text = b'{"order": %d, "state": "shipped", "city": "Rome", "lines": [%d, %d], ' % (row, row % 17, row % 5)
        yield text.ljust(case.value_bytes, b".")


# The consumer, a process of its own: it reads commands, and answers each with a line of JSON.


def _columns(event: Mutations) -> int:
    event.values()
    return len(event.keys())


def _rows(event: Mutations) -> int:
    count = 0
    for _ in event:
        count += 1
    return count


_TAKE: dict[str, Callable[[Mutations], int]] = {"columns": _columns, "rows": _rows}


def _decode(blocks: list[bytes], way: str) -> dict[str, float]:
    """Decodes frames' bodies that are in memory."""
    take, rows = _TAKE[way], 0
    used, began = time.process_time(), time.perf_counter()
    for data in blocks:
        rows += take(Mutations(Block.parse(memoryview(data))))
    return {"rows": rows, "seconds": time.perf_counter() - began, "cpu": time.process_time() - used}


async def _stream(client: tailrace.Client, feed: str, way: str) -> dict[str, float]:
    """Reads a feed through a stream."""
    take, rows = _TAKE[way], 0
    used, began = time.process_time(), time.perf_counter()
    async with client.feed(feed).consume(until="now", catch_up="stream") as stream:
        opening_s = time.perf_counter() - began
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                rows += take(event)
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    return {"rows": rows, "seconds": seconds, "cpu": cpu, "opening": opening_s}


def _session(recorded: Recorded, way: str) -> dict[str, float]:
    """Takes the bytes of a stream by a session, without a socket."""
    used, began = time.process_time(), time.perf_counter()
    rows = recorded.consume(_TAKE[way])
    return {"rows": rows, "seconds": time.perf_counter() - began, "cpu": time.process_time() - used}


def _received(recorded: Recorded, path: Path, way: str) -> dict[str, float]:
    """Has a session take the bytes of a stream from a bare sender."""
    with BareSender(path) as sender, sender.connect() as sock:
        used, began = time.process_time(), time.perf_counter()
        rows = recorded.receive(sock, _TAKE[way])
        return {"rows": rows, "seconds": time.perf_counter() - began, "cpu": time.process_time() - used}


def _bare(blocks: list[bytes], path: Path, way: str) -> dict[str, float]:
    """Receives the blocks from a bare sender into one buffer, and decodes them there."""
    take, rows = _TAKE[way], 0
    buffer = memoryview(bytearray(max(map(len, blocks))))
    with BareSender(path) as sender:
        with sender.connect() as sock:
            used, began = time.process_time(), time.perf_counter()
            for data in blocks:
                place = buffer[: len(data)]
                while place:
                    place = place[sock.recv_into(place) :]
                rows += take(Mutations(Block.parse(buffer[: len(data)])))
            seconds, cpu = time.perf_counter() - began, time.process_time() - used
        return {"rows": rows, "seconds": seconds, "cpu": cpu, "sender": sender.cpu_seconds()}


async def _blocks(client: tailrace.Client, feed: str) -> list[bytes]:
    """Returns the blocks of a feed, as a stream brings them."""
    async with client.feed(feed).consume(until="now", catch_up="stream") as stream:
        return [event.block.tobytes() async for event in stream if isinstance(event, tailrace.Mutations)]


async def _consume(address: str, folder: Path) -> None:
    blocks: list[bytes] = []
    async with tailrace.connect(address) as client:
        for line in sys.stdin:
            command, *arguments = line.split()
            gc.collect()
            if command == "load":
                blocks, recorded = await _blocks(client, arguments[0]), await Recorded.of(client, arguments[0])
                await trio.Path(folder / BLOCKS).write_bytes(b"".join(blocks))
                await trio.Path(folder / FRAMES).write_bytes(b"".join(recorded.events))
                answer: dict[str, float] = {"blocks": len(blocks), "bytes": sum(map(len, blocks))}
            elif command == "decode":
                answer = _decode(blocks, arguments[0])
            elif command == "session":
                answer = _session(recorded, arguments[0])
            elif command == "bare":
                answer = _bare(blocks, folder / BLOCKS, arguments[0])
            elif command == "received":
                answer = _received(recorded, folder / FRAMES, arguments[0])
            else:
                answer = await _stream(client, *arguments)
            print(json.dumps(answer), flush=True)


class Consumer:
    """The consumer's process."""

    def __init__(self, address: str, folder: Path) -> None:
        """``folder``: for the files of the bare sender."""
        command = [sys.executable, __file__, "--consume", address, "--folder", str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *command: str) -> dict[str, float]:
        """Has a command done, and returns its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*command, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, "the consumer has ended"
        answer: dict[str, float] = json.loads(line)
        return answer

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def _drop_files(folder: Path) -> None:
    """Has the system forget the segments of a folder, and the files of the bare sender beside it."""
    os.sync()
    for path in (*folder.rglob("*.seg"), folder.parent / BLOCKS, folder.parent / FRAMES):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def _round(consumer: Consumer, server: Server, case: Case, way: str) -> Found:
    decoded, taken = consumer.ask("decode", way), consumer.ask("session", way)
    if case.is_cold:
        _drop_files(server.folder)
    before = cpu_seconds_of(server.process.pid)
    streamed = consumer.ask("stream", case.feed, way)
    used = cpu_seconds_of(server.process.pid) - before
    if case.is_cold:
        _drop_files(server.folder)
    bare = consumer.ask("bare", way)
    if case.is_cold:
        _drop_files(server.folder)
    received = consumer.ask("received", way)
    found = (decoded, taken, bare, received, streamed)
    assert len({each["rows"] for each in found}) == 1, found
    return Found(*(_way(each, each.get("sender", 0.0)) for each in found[:-1]), _way(streamed, used))


def _way(answer: dict[str, float], sender_s: float) -> Way:
    rows = answer["rows"]
    return Way(
        rows / answer["seconds"],
        answer["cpu"] * 1e9 / rows,
        sender_s * 1e9 / rows,
        answer.get("opening", 0.0) * 1000,
    )


Figures = dict[tuple[Case, str], list[Found]]


async def _measure(cases: list[Case], rows: int, rounds: int, folder: Path) -> Figures:
    figures: Figures = {}
    with Server(folder / "node", folder / "log") as server, Consumer(server.address, folder) as consumer:
        async with tailrace.connect(server.address) as client:
            filled: set[str] = set()
            for case in cases:
                print(f"segment streams: {case.name} ...", file=sys.stderr, flush=True)
                if case.feed not in filled:
                    await _fill(client, server, case, int(rows * case.share))
                    filled.add(case.feed)
                await trio.to_thread.run_sync(partial(consumer.ask, "load", case.feed))
                for _, way in itertools.product(range(rounds), _WAYS):
                    found = await trio.to_thread.run_sync(partial(_round, consumer, server, case, way))
                    figures.setdefault((case, way), []).append(found)
        server.stop()
    return figures


def _ratio(found: list[Found], one: str, other: str) -> float:
    return median(getattr(each, one).rate / getattr(each, other).rate for each in found)


def _of(found: list[Found], way: str) -> Way:
    return Way(*map(median, zip(*(getattr(each, way) for each in found), strict=True)))


def _lines(figures: Figures) -> list[Line]:
    lines = []
    for (case, way), found in figures.items():
        name = f"{case.name}, by {way}"
        for what, label in _LABELS.items():
            lines.append(Line(f"{name}: {label}", _of(found, what).rate, "rows/s"))
        lines.append(Line(f"{name}: stream / decoding", _ratio(found, "stream", "decoding"), least=case.target))
        lines.append(Line(f"{name}: stream / bare sockets", _ratio(found, "stream", "bare")))
        lines.append(Line(f"{name}: stream / session on sockets", _ratio(found, "stream", "received")))
        lines.append(Line(f"{name}: until the stream is open", _of(found, "stream").opening_ms, "ms"))
        for what, label in _LABELS.items():
            lines.append(Line(f"{name}: {label}, the consumer's processor", _of(found, what).consumer_ns, "ns a row"))
        lines.append(Line(f"{name}: the node's processor", _of(found, "stream").sender_ns, "ns a row"))
        lines.append(Line(f"{name}: the bare sender's processor", _of(found, "bare").sender_ns, "ns a row"))
    return lines


_LABELS = {
    "decoding": "decoding alone",
    "session": "session",
    "bare": "bare sockets",
    "received": "session on sockets",
    "stream": "stream",
}
_HEAD = ("million rows/s", *_LABELS.values(), "stream / decoding", "/ bare", "/ session on sockets", "open in, ms")
_HEAD_PROCESSOR = ("processor, ns a row", *_LABELS.values(), "the node", "bare sender")


def write_readme(figures: Figures, setting: str) -> None:
    """Replaces the section between its marks by the tables of this run."""
    rates, processors = [], []
    for (case, way), found in figures.items():
        ways = [_of(found, what) for what in _LABELS]
        ratios = [_ratio(found, "stream", other) for other in ("decoding", "bare", "received")]
        name = f"{case.name}, by {way}"
        rate_texts = (f"{each.rate / 1e6:.2f}" for each in ways)
        opening = f"{_of(found, 'stream').opening_ms:.1f}"
        rates.append((name, *rate_texts, *(f"{ratio:.2f}" for ratio in ratios), opening))
        senders = [_of(found, what).sender_ns for what in ("stream", "bare")]
        processors.append((name, *(number(each.consumer_ns) for each in ways), *map(number, senders)))
    text = [BEGIN, "", setting, "", *_table(_HEAD, rates), "", *_table(_HEAD_PROCESSOR, processors), "", END]
    before, _, rest = README.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    assert after, f"{README} has no section of segment_streams.py"
    README.write_text(before + "\n".join(text) + after)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--only", nargs="+", metavar="CASE", choices=[case.name for case in CASES])
    parser.add_argument("--folder", help="for the data meanwhile; the system's temporary folder by default")
    parser.add_argument("--readme", action="store_true")
    parser.add_argument("--consume", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.consume:
        trio.run(_consume, args.consume, Path(args.folder))
        return 0
    stolen, load = Stolen(), os.getloadavg()[0]
    cases = [case for case in CASES if not args.only or case.name in args.only]
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=args.folder) as folder:
        figures = trio.run(_measure, cases, args.rows, args.rounds, Path(folder))
    lines = _lines(figures)
    show(lines, "one consumer of segments")
    print(f"taken by the machine's host for others: {stolen.share:.1%}")
    if args.readme:
        loads = f"{load:.1f} before and {os.getloadavg()[0]:.1f} at the end, this bench included"
        setting = f"{args.rows:,} rows, a tenth of them for the large values; medians of {args.rounds} rounds. "
        write_readme(figures, f"{setting}The load of the two processors was {loads}.")
    return 0 if all(line.is_met for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
