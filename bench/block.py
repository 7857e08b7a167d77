"""What a block costs: encoding, columns, Arrow, the checks at the door, as ratios to bare loops of the same run.

    python bench/block.py [--rows 1000] [--key-bytes 16] [--value-bytes 100] [--differing] [--seconds 1]

Each line is measured interleaved with the bare loop that it is compared with; figures are medians. A second process
without pyarrow, and a third without numpy either, take the columns again. Targets are for the default rows; exit code 1
where one is missed.
"""

from __future__ import annotations

import argparse
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import accumulate, pairwise
from statistics import median
from typing import NamedTuple

if __name__ == "__main__" and "--without" in sys.argv:  # before anything could import them
    for name in sys.argv[sys.argv.index("--without") + 1].split(","):
        sys.modules[name] = None  # type: ignore[assignment]

from tailrace.block import Block, block_from_arrow, encode_block, hash_array
from tailrace.block.lazy import numpy_or_none, pyarrow_or_none
from tailrace.consuming.events import Mutations
from tailrace.model.hashing import hash_keys
from tailrace_server.partition.validation import validate_block

HASHES = (0, 2**64 - 1)
DEFAULT_SHAPE = (1000, 16, 100)  # rows, bytes of a key, bytes of a value


class Line(NamedTuple):
    """A row of the table: what is measured, the bare loop beside it, and the target, if there is one."""

    name: str
    run: Callable[[], object]
    bare: Callable[[], object] | None = None
    ratio_max: float | None = None
    micros_max: float | None = None


def sample_rows(args: argparse.Namespace) -> tuple[list[bytes], list[bytes]]:
    """Random keys and values, of the given lengths or of lengths around them."""
    chance = random.Random(5)

    def draw(nbytes: int) -> bytes:
        return chance.randbytes(chance.randint(1, 2 * nbytes) if args.differing else nbytes)

    return [draw(args.key_bytes) for _ in range(args.rows)], [draw(args.value_bytes) for _ in range(args.rows)]


def bare_encode(keys: list[bytes], values: list[bytes]) -> tuple[bytes, ...]:
    """Both columns joined, their offsets and hashes packed; no checks, checksum, header, or body in one piece."""
    rows = len(keys)
    offsets, numbers = struct.Struct(f"<{rows + 1}I"), struct.Struct(f"<{rows}Q")
    return (
        b"".join(keys),
        offsets.pack(*accumulate(map(len, keys), initial=0)),
        b"".join(values),
        offsets.pack(*accumulate(map(len, values), initial=0)),
        numbers.pack(*hash_keys(keys)),
    )


def bare_slices(parts: tuple[bytes, ...]) -> tuple[list[bytes], list[bytes]]:
    """Two columns of bytes by slicing, where the offsets are trusted."""
    key_data, key_offsets, value_data, value_offsets, hashes = parts
    rows = len(hashes) // 8
    keys = [key_data[start:stop] for start, stop in pairwise(struct.unpack(f"<{rows + 1}I", key_offsets))]
    values = [value_data[start:stop] for start, stop in pairwise(struct.unpack(f"<{rows + 1}I", value_offsets))]
    return keys, values


def arrived(block: Block) -> Block:
    """The block as if it had just arrived: nothing of it is checked or kept. Its checksums are a line of their own."""
    return Block(block.header, block.head, block.body)


def columns_line(block: Block, parts: tuple[bytes, ...]) -> Line:
    """Both columns as lists, by what is installed in this process, the checks of the columns included."""

    def run() -> object:
        columns = arrived(block).columns()
        return columns.keys(), columns.values()

    fast = pyarrow_or_none() is not None
    installed = "pyarrow" if fast else "numpy alone" if numpy_or_none() is not None else "neither"
    micros_max = block.rows * 120 / 1000 if fast else None  # 120 ns a row
    return Line(f"to columns of bytes ({installed})", run, lambda: bare_slices(parts), 1.3, micros_max)


def lines_of(keys: list[bytes], values: list[bytes]) -> list[Line]:
    """The table's rows for these sample rows; without pyarrow only that of the columns."""
    block = encode_block(keys, values, partition=0, compress=False)
    data, stamped, parts = block.tobytes(), block.stamped(1, 1), bare_encode(keys, values)
    columns = columns_line(block, parts)
    if pyarrow_or_none() is None:
        return [columns]
    hashes = numpy_or_none().array(hash_keys(keys), "<u8")

    def encode() -> object:
        return encode_block(keys, values, partition=0, compress=False)

    def arrow() -> tuple[object, object]:
        opened = arrived(block).columns()
        return opened.key_array(), opened.value_array()

    arrays = arrow()
    # As Spark would hand them over: xxhash64(key), which is the key's hash, as a signed number.
    column = pyarrow_or_none().array(hashes.view("<i8"))
    return [
        Line("encode", encode, lambda: bare_encode(keys, values), 1.5),
        columns,
        Line("to rows (Mutation)", lambda: list(Mutations(stamped)), lambda: bare_slices(parts)),
        Line("key and value to Arrow", arrow, None, None, 15),
        Line("RecordBatch of six columns", lambda: Mutations(stamped).to_arrow()),
        Line("hashes of the keys", lambda: hash_array(arrays[0])),
        Line("hashes by a column of Spark's", lambda: column.to_numpy().view("<u8")),
        Line("from Arrow", lambda: block_from_arrow(*arrays, partition=0, compress=False)),
        Line("from Arrow, hashes given", lambda: block_from_arrow(*arrays, partition=0, hashes=hashes, compress=False)),
        Line("header and checksums (parse)", lambda: Block.parse(data)),
        Line("checks at the door", lambda: validate_block(arrived(block), *HASHES), None, None, 50),
        Line("parse and door together", lambda: validate_block(Block.parse(data), *HASHES), None, None, 50),
        Line("stamp (seqs, timestamp, header's sum)", lambda: block.stamped(7, 9)),
    ]


def measure(line: Line, seconds: float) -> tuple[float, float | None]:
    """Median µs of the line and of its bare loop, called in turns for ``seconds``."""
    ours: list[float] = []
    bares: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(ours) < 20:
        for run, times in ((line.run, ours), (line.bare, bares)):
            if run is not None:
                begin = time.perf_counter_ns()
                run()
                times.append((time.perf_counter_ns() - begin) / 1000)
    return median(ours), median(bares) if bares else None


def report(line: Line, rows: int, seconds: float) -> bool:
    """Measures and prints a line; False where it misses a target."""
    micros, bare = measure(line, seconds)
    ratio = micros / bare if bare else None
    targets: list[tuple[str, bool]] = []
    if line.ratio_max is not None:
        targets.append((f"<= {line.ratio_max:g}x", ratio is not None and ratio <= line.ratio_max))
    if line.micros_max is not None:
        targets.append((f"< {line.micros_max:g} µs", micros < line.micros_max))
    verdict = ", ".join(f"{text} {'met' if met else 'MISSED'}" for text, met in targets)
    bare_text = f"{bare:9.1f} {ratio:6.2f}x" if bare and ratio else " " * 17
    print(f"{line.name:40}{micros:9.1f} {1000 * micros / rows:8.1f} {bare_text}  {verdict}", flush=True)
    return all(met for _, met in targets)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=DEFAULT_SHAPE[0])
    parser.add_argument("--key-bytes", type=int, default=DEFAULT_SHAPE[1])
    parser.add_argument("--value-bytes", type=int, default=DEFAULT_SHAPE[2])
    parser.add_argument("--differing", action="store_true", help="lengths from 1 to twice those given")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line")
    parser.add_argument("--without", default="", help="packages to run without, separated by commas")
    args = parser.parse_args()
    if not args.without:
        kind = "of differing lengths" if args.differing else "of equal lengths"
        print(f"{args.rows} rows of {args.key_bytes} + {args.value_bytes} bytes, {kind}, not compressed; medians")
        print(f"{'':40}{'µs':>9} {'ns/row':>8} {'bare µs':>9} {'ratio':>7}")
    lines = lines_of(*sample_rows(args))
    if args.differing or (args.rows, args.key_bytes, args.value_bytes) != DEFAULT_SHAPE:
        lines = [line._replace(ratio_max=None, micros_max=None) for line in lines]
    met = [report(line, args.rows, args.seconds) for line in lines]
    if not args.without:
        for missing in ("pyarrow", "pyarrow,numpy"):
            again = subprocess.run([sys.executable, *sys.argv, "--without", missing], check=False)
            met.append(again.returncode == 0)
    return 0 if all(met) else 1


if __name__ == "__main__":
    raise SystemExit(main())
