"""What an open console costs a node, how soon it has data, and how long it holds up the node.

    python bench/console.py [--partitions 1024] [--streams 1000] [--seconds 20] [--turns 3]

One process is a node with a feed of all the partitions, with rows in each. Another one opens the streams on ten
connections and reads nothing, so that each is stuck and has a lag to be found. A third one is a console: a live channel
that watches the overview, the feeds, the feed with 128 partitions and the worst 100 consumers. If there are chromium
and playwright, the page is opened in a browser too.

The processor time of the node is taken without and with the console, in turns. What is told: the difference, as a part
of a core; the time from the connect to the first value of the overview; the time from the visit of the page to its
first paint, and to its verdict; and the longest step of a task on the loop
(processor time, so that a busy machine does not count).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

import trio
from trio_websocket import open_websocket

from _report import Line, p50, show
from metrics import Steps, _consumers, _filled, _open
from tailrace_server.node.node import Node
from tailrace_server.serving.console import http_listener
from tailrace_server.serving.console.live import SUBPROTOCOL

# The targets of issue 18.
SHARE_MAX = 0.02
FIRST_DATA_SECONDS_MAX = 1.0
FIRST_PAINT_SECONDS_MAX = 1.0
STALL_SECONDS_MAX = 0.005
_TOPICS = [
    {"topic": "overview"},
    {"topic": "feeds"},
    {"topic": "feed", "feed": "orders"},
    {"topic": "consumers"},
]
_OPENS = 20
_CHROMIUM = shutil.which("chromium")
_VERDICT = "() => document.querySelector('#verdict') !== null"
_FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint').map((entry) => entry.startTime)"
_SETTLE_SECONDS = 5.0


@contextlib.contextmanager
def _console(address: tuple[str, int]) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, __file__, "--watch", f"{address[0]}:{address[1]}"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def _share(seconds: float) -> float:
    """The part of a core that this process takes meanwhile."""
    begin, cpu = time.perf_counter(), time.process_time()
    await trio.sleep(seconds)
    return (time.process_time() - cpu) / (time.perf_counter() - begin)


async def _watched(node: Node) -> None:
    """Waits until the console's connection is there, and has its first values."""
    before = node.board.now
    while node.board.now is before:  # noqa: ASYNC110 - no one tells
        await trio.sleep(0.1)
    await trio.sleep(_SETTLE_SECONDS)


async def _measure(node: Node, address: tuple[str, int], what: str, options: argparse.Namespace) -> list[Line]:
    without, with_console, longest = [], [], []
    for _ in range(options.turns):
        without.append(await _share(options.seconds))
        with _console(address):
            await _watched(node)
            with_console.append(await _share(options.seconds))
            steps = Steps()
            trio.lowlevel.add_instrument(steps)
            await trio.sleep(_SETTLE_SECONDS)
            trio.lowlevel.remove_instrument(steps)
            longest.append(steps.longest_s)
    first = (await trio.to_thread.run_sync(_asked, "--first", address))["data"]
    paints: list[Line] = []
    if _CHROMIUM and importlib.util.find_spec("playwright"):
        paint = await trio.to_thread.run_sync(_asked, "--paint", address)
        paints = [
            Line(f"{what}: the first paint, p50", p50(paint["paint"]), "ms", most=FIRST_PAINT_SECONDS_MAX * 1e3),
            Line(f"{what}: the first paint, longest", max(paint["paint"]), "ms"),
            Line(f"{what}: the verdict is shown, p50", p50(paint["verdict"]), "ms"),
        ]
    cost = p50([one - other for one, other in zip(with_console, without, strict=True)])
    return [
        Line(f"{what}: the node without a console", p50(without) * 100, "% of a core"),
        Line(f"{what}: a console more", cost * 100, "% of a core", most=SHARE_MAX * 100),
        Line(f"{what}: the first data, p50", p50(first) * 1e3, "ms", most=FIRST_DATA_SECONDS_MAX * 1e3),
        Line(f"{what}: the first data, longest", max(first) * 1e3, "ms"),
        *paints,
        Line(f"{what}: the longest step on the loop, p50", p50(longest) * 1e3, "ms", most=STALL_SECONDS_MAX * 1e3),
    ]


def _asked(question: str, address: tuple[str, int]) -> dict[str, list[float]]:
    """Returns what another process of this program has measured."""
    order = [sys.executable, __file__, question, f"{address[0]}:{address[1]}"]
    ran = subprocess.run(order, check=True, stdout=subprocess.PIPE, text=True)
    told: dict[str, list[float]] = json.loads(ran.stdout)
    return told


async def _run(options: argparse.Namespace) -> list[Line]:
    async with _filled(options.partitions) as (node, url), http_listener(node, ("127.0.0.1", 0)) as address:
        assert address is not None
        lines = await _measure(node, address, "quiet", options)
        with _consumers(url, options.streams):
            await _open(node, options.streams)
            lines += await _measure(node, address, "streams", options)
    return lines


@contextlib.asynccontextmanager
async def _channel(address: str) -> AsyncIterator[object]:
    host, _, port = address.rpartition(":")
    async with open_websocket(host, int(port), "/api/live", use_ssl=False, subprotocols=[SUBPROTOCOL]) as socket:
        yield socket


async def _watch(address: str) -> None:
    """Keeps a console open until the process is killed."""
    async with _channel(address) as socket:
        await socket.send_message(json.dumps({"watch": _TOPICS}))
        while True:
            await socket.get_message()


async def _first(address: str) -> None:
    """Prints the seconds from each of some connects to the first value."""
    seconds = []
    for _ in range(_OPENS):
        begin = time.perf_counter()
        async with _channel(address) as socket:
            await socket.send_message(json.dumps({"watch": _TOPICS}))
            while json.loads(await socket.get_message())["type"] != "value":
                pass
            seconds.append(time.perf_counter() - begin)
        await trio.sleep(0.25)
    print(json.dumps({"data": seconds}))


def _paint(address: str) -> None:
    """Prints the milliseconds from each of some visits of the page to its first paint, and to its verdict."""
    from playwright.sync_api import sync_playwright

    paints, verdicts = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        for _ in range(_OPENS):
            context = browser.new_context()  # without a cache
            page = context.new_page()
            page.goto(f"http://{address}/")
            page.wait_for_function(_VERDICT)
            verdicts.append(page.evaluate("performance.now()"))
            page.wait_for_function(f"() => {_FIRST_PAINT}.length === 1")
            paints += page.evaluate(_FIRST_PAINT)
            context.close()
        browser.close()
    print(json.dumps({"paint": paints, "verdict": verdicts}))


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1_024)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--watch", help=argparse.SUPPRESS)
    parser.add_argument("--first", help=argparse.SUPPRESS)
    parser.add_argument("--paint", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.paint:
        _paint(options.paint)
        return
    if options.watch or options.first:
        trio.run(*((_watch, options.watch) if options.watch else (_first, options.first)))
        return
    lines = trio.run(_run, options)
    show(lines, f"the console at {options.partitions} partitions and {options.streams} streams")
    sys.exit(not all(line.is_met for line in lines))


if __name__ == "__main__":
    main()
