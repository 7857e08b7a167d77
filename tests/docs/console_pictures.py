"""Makes the pictures of docs/guides/console.md anew: ``python -m tests.docs.console_pictures``. Look at them.

One node has restarted after crashes, so its feed has branches; a set of three has lost a follower.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import urllib.request
from pathlib import Path

import trio
from PIL import Image
from tests.processes.node import HOST, NodeProcess
from tests.processes.program import Orders
from tests.tailrace_server.serving.console.browser import PHONE, Browser, busy

import tailrace
from tailrace.testing.ports import free_port, free_ports

FOLDER = Path(__file__).parents[2] / "docs" / "guides" / "console"
COLORS = 256
CRASHES = 3
# The samples behind the rates take 2 seconds each.
WATCHED_MS = 7_000
SMALL_SEGMENTS = Orders(storage={"flush_age_s": 1.0, "segment_bytes": 65_536})
DARK = {"color_scheme": "dark"}


def main():
    """Makes all pictures."""
    FOLDER.mkdir(exist_ok=True)
    browser = Browser()
    try:
        with tempfile.TemporaryDirectory() as folder:
            _pictures_of_a_node(browser, Path(folder))
            _pictures_of_a_set(browser, Path(folder))
    finally:
        browser.close()


def _pictures_of_a_node(browser, folder):
    node = NodeProcess(folder / "node", SMALL_SEGMENTS, http=f"{HOST}:{free_port()}")
    node.start()
    for _ in range(CRASHES):
        with busy(node.url):
            _until(node, "feeds/orders/partitions/0", lambda told: told["segments"] > 2)
        node.kill()
        node.start()
    with busy(node.url), _slow_consumer(node.url), busy(node.url, "clicks", 16):
        _until(node, "consumers", lambda told: told["consumers"] and told["consumers"][0]["state"] == "stuck")
        browser.do(_take, browser, node, "#/", "overview-stuck", "table")
        browser.do(_take, browser, node, "#/feeds/orders/0", "partition", ".picture")
        browser.do(_take, browser, node, "#/feeds/orders", "feed-phone", "table", viewport=PHONE, **DARK)
        browser.do(_take, browser, node, "#/consumers", "consumers", "table", **DARK)
        browser.do(_take, browser, node, "#/consumers", "consumers-phone", "table", viewport=PHONE)
    node.stop()


def _pictures_of_a_set(browser, folder):
    ports = free_ports(3)
    members = ",".join(f"{HOST}:{port}" for port in ports)
    nodes = [
        NodeProcess(folder / f"n{port}", port=port, options=["--members", members], http=f"{HOST}:{free_port()}")
        for port in ports
    ]
    for node in nodes:
        node.launch()
    for node in nodes:
        node.require_ready()
    with busy(f"tailrace://{members}"):
        leader = next(node for node in nodes if _ask(node, "console")["role"] == "leader")
        next(node for node in nodes if node is not leader).kill()
        _until(leader, "console", lambda told: told["problems"])
        browser.do(_take, browser, leader, "#/", "overview-lost", "tr.bad", **DARK)
    for node in nodes:
        node.stop()


def _take(browser, node, screen, name, selector, **options):
    with browser.open(**options) as visit:
        page = visit.page
        page.goto(f"http://{node.http}/{screen}")
        page.locator(selector).first.wait_for()
        page.wait_for_timeout(WATCHED_MS)
        path = FOLDER / f"{name}.png"
        page.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(COLORS, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)


@contextlib.contextmanager
def _slow_consumer(url):
    """A consumer that takes its rows and gives no credit back."""
    ready, end = threading.Event(), threading.Event()

    async def stand_still():
        async with tailrace.connect(url, name="search") as client, client.feed("orders").consume():
            ready.set()
            await trio.to_thread.run_sync(end.wait)

    thread = threading.Thread(target=trio.run, args=(stand_still,))
    thread.start()
    ready.wait()
    yield
    end.set()
    thread.join()


def _ask(node, path):
    with urllib.request.urlopen(f"http://{node.http}/api/{path}") as answer:
        return json.load(answer)


def _until(node, path, holds):
    while not holds(_ask(node, path)):
        threading.Event().wait(0.2)


if __name__ == "__main__":
    main()
