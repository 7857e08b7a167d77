"""What authority adds to a request: its role, its feed, and the keys of a block, in microseconds of the processor.

    python bench/authority.py [--seconds 2]

Each kind of token takes turns with a node that requires none, over the same blocks: parsed, permitted, and validated as
a WRITE is. The differences of the medians are told. The target is that of issue 18: 2 µs a request.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from statistics import median
from types import SimpleNamespace
from typing import Any, NamedTuple

from _report import Line, show
from tailrace.block import Block, encode_block
from tailrace.wire.opcodes import Opcode
from tailrace_server.partition.validation import validate_block
from tailrace_server.serving.access import Access
from tailrace_server.state.principal import OPEN, Principal

MICROSECONDS_MAX = 2.0
FEED_ID = bytes(range(16))
HASHES = (0, 2**64 - 1)
ROWS = (1, 10, 1_000)
# Requests of one turn: long beside the clock, short beside a change of the machine.
_REQUESTS = 200
_TOKENS = {
    "role": Principal("shop", "write"),
    "role, feed": Principal("shop", "write", frozenset(("orders",))),
    "role, feed, key prefix": Principal("shop", "write", frozenset(("orders",)), b"eu/"),
}


class _Feeds:
    """The part of a catalog that is asked."""

    def find(self, feed_id: bytes) -> Any:
        return SimpleNamespace(info=SimpleNamespace(name="orders")) if feed_id == FEED_ID else None


class Case(NamedTuple):
    """A kind of token, and the rows of its blocks."""

    name: str
    rows: int
    access: Access


def write_once(access: Access, data: bytes) -> None:
    """Does what a node does with the block of a WRITE before it is taken."""
    if Opcode.WRITE not in access.permitted:
        raise access.refusal(Opcode.WRITE)
    block = Block.parse(data)
    if access.is_limited:
        access.require_block(FEED_ID, block)
    validate_block(block, *HASHES)


def get_once(access: Access, keys: list[bytes]) -> None:
    """Does what a node does with the keys of a GET before it looks them up."""
    if Opcode.GET not in access.permitted:
        raise access.refusal(Opcode.GET)
    access.require_keys(FEED_ID, keys)


def turn_s(run: Callable[[], None]) -> float:
    """Returns the processor seconds of one request, over a turn."""
    began = time.thread_time()
    for _ in range(_REQUESTS):
        run()
    return (time.thread_time() - began) / _REQUESTS


def added(seconds: float, with_token: Callable[[], None], without: Callable[[], None]) -> float:
    """Returns the microseconds that a token adds to a request, from turns of both."""
    ends, found = time.monotonic() + seconds, []
    while time.monotonic() < ends:
        found.append(turn_s(with_token) - turn_s(without))
    return median(found) * 1e6


def lines(seconds: float) -> Iterator[Line]:
    feeds: Any = _Feeds()
    nobody = Access(OPEN, feeds)
    for name, principal in _TOKENS.items():
        access = Access(principal, feeds)
        for rows in ROWS:
            keys = [b"eu/%013d" % row for row in range(rows)]
            data = encode_block(keys, [b"v" * 100] * rows, partition=0, compress=False).tobytes()
            cost = added(seconds, lambda a=access, d=data: write_once(a, d), lambda d=data: write_once(nobody, d))  # type: ignore[misc]
            yield Line(f"WRITE of {rows:,} rows: {name}", cost, "µs", most=MICROSECONDS_MAX if rows == 1 else None)
        cost = added(seconds, lambda a=access: get_once(a, [b"eu/1"]), lambda: get_once(nobody, [b"eu/1"]))  # type: ignore[misc]
        yield Line(f"GET of a key: {name}", cost, "µs", most=MICROSECONDS_MAX)


def main() -> int:
    parser = argparse.ArgumentParser(description="What authority adds to a request.")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each line")
    found = list(lines(parser.parse_args().seconds))
    show(found, "What a token adds to a request")
    return 0 if all(line.is_met for line in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
