"""A headless Chromium for tests, and programs that keep a node busy.

Playwright runs a loop of its own. It is given a thread, so that the other tests of the process do not meet it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import importlib.util
import shutil
import threading

import trio

import tailrace

CHROMIUM = shutil.which("chromium")
HAS_PLAYWRIGHT = all(importlib.util.find_spec(name) for name in ("playwright", "pyee"))
INSTALL = "apt-get install chromium && pip install playwright"
IS_THERE = CHROMIUM is not None and HAS_PLAYWRIGHT
# Far more than anything takes on a busy machine.
PATIENCE_MS = 60_000
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 740}


class Browser:
    """Chromium in a thread. ``do`` runs a function there; all that Playwright gives may be used only in it."""

    def __init__(self):
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "browser")
        self._started = self.do(self._start)

    def do(self, function, *args, **kwargs):
        """Returns what the function returns in the browser's thread."""
        return self._thread.submit(function, *args, **kwargs).result()

    def _start(self):
        from playwright.sync_api import sync_playwright

        playwright = sync_playwright().start()
        return playwright, playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

    @contextlib.contextmanager
    def open(self, **options):
        """A page of its own profile, as ``Visit``. In the browser's thread."""
        context = self._started[1].new_context(**{"viewport": DESKTOP, **options})
        context.set_default_timeout(PATIENCE_MS)
        try:
            yield Visit(context.new_page())
        finally:
            context.close()

    def close(self):
        """Ends Chromium and the thread."""
        playwright, chromium = self._started
        self.do(chromium.close)
        self.do(playwright.stop)
        self._thread.shutdown()


class Visit:
    """A page, and what it has asked for and complained of."""

    def __init__(self, page):
        self.page = page
        self.hosts = set()
        self.urls = []
        self.errors = []
        page.on("request", lambda request: self._asked(request.url))
        page.on("websocket", lambda socket: self._asked(socket.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda line: self.errors.append(line.text) if line.type in ("error", "warning") else None)

    def _asked(self, url):
        self.urls.append(url)
        self.hosts.add(url.split("/")[2])


def in_browser(test):
    """Runs a test in the thread of its fixture ``browser``."""

    @functools.wraps(test)
    def run(browser, **fixtures):
        browser.do(test, browser=browser, **fixtures)

    return run


@contextlib.contextmanager
def busy(url, name="orders", partitions=4):
    """Keeps a feed of the node written to, and read by the consumer "index", from a thread. Begins when both go on."""
    with _beside(_work, url, name, partitions):
        yield


@contextlib.contextmanager
def taking_nothing(url):
    """Keeps a consumer "idler" of the feed "orders" that has more to handle than it may hold, and handles nothing."""
    with _beside(_idle, url):
        yield


@contextlib.contextmanager
def _beside(program, *args):
    """Runs an async program in a thread, from its event ``ready`` on, until its event ``end``."""
    ready, end = threading.Event(), threading.Event()
    failures = []

    def work():
        try:
            trio.run(program, *args, ready, end)
        except BaseException as failure:
            failures.append(failure)
            ready.set()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        end.set()
        thread.join()
    if failures:
        raise failures[0]


async def _work(url, name, partitions, ready, end):
    async with tailrace.connect(url, name="index", retry_for=120) as client, trio.open_nursery() as nursery:
        feed = await client.create_feed(name, partitions=partitions)
        await nursery.start(_read, feed)
        number = 0
        while not end.is_set():
            async with feed.writer() as writer:
                for _ in range(100):
                    number += 1
                    await writer.put(b"key-%d" % (number % 1000), b'{"number": %d}' % number)
            ready.set()
            await trio.sleep(0.05)
        nursery.cancel_scope.cancel()


async def _idle(url, ready, end):
    async with tailrace.connect(url, name="idler", retry_for=120) as client:
        feed = await client.create_feed("orders")
        async with feed.writer() as writer:
            for number in range(200):
                await writer.put(b"%d" % number, b"value")
        async with feed.consume(window_bytes=1_000):
            ready.set()
            await trio.to_thread.run_sync(end.wait)


async def _read(feed, *, task_status):
    async with feed.consume() as stream:
        task_status.started()  # the node knows the consumer, so it stays known
        async for _ in stream:
            pass
