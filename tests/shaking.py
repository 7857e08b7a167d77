"""Delays what a busy machine delays, so that a test which looks a moment too early fails soon.

``TAILRACE_SHAKE=7 pytest tests/...``: the seed 7 and the id of a test decide what happens in it. Bytes are noticed
late, threads begin and end late, and the whole loop stands still. A loop of a test that waits for something looks at
each turn of the program's loop, so it also sees what lasts for a turn only. Tests with a clock of their own are left
alone, and so are other processes. Without the variable nothing is done.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest
import trio
from trio import _core, _threads

SEED = os.environ.get("TAILRACE_SHAKE", "")
# How many reads are noticed late; threads twice as often.
LATE_SHARE = 0.06
# How many turns of the loop begin late.
STALL_SHARE = 0.002
LATE_SECONDS_MAX = 0.08
# A sleep of a test up to this long is a look at something that it waits for.
LOOK_SECONDS_MAX = 0.06
_TESTS = str(Path(__file__).parent)


class Shaker(trio.abc.Instrument):
    """Decides by chance what is late. It shakes only while a test runs, and fixtures not at all."""

    def __init__(self) -> None:
        self.is_on = False
        self._random = random.Random()

    def begin(self, seed: str) -> None:
        self.is_on = True
        self._random.seed(seed)

    def end(self) -> None:
        self.is_on = False

    def late_seconds(self, share: float) -> float:
        """Returns how much later something happens: 0 for most, and little for most of the others."""
        if not self.is_on or self._random.random() >= share:
            return 0.0
        return self._random.random() ** 2 * LATE_SECONDS_MAX

    def before_io_wait(self, timeout: float) -> None:
        if _is_real_time():
            time.sleep(self.late_seconds(STALL_SHARE))

    def late(self, function):
        """Returns ``function`` for a thread, with a delay before or behind it."""
        seconds = self.late_seconds(2 * LATE_SHARE)
        if not seconds:
            return function
        is_early = self._random.random() < 0.5

        def late(*arguments):
            time.sleep(seconds if is_early else 0)
            try:
                return function(*arguments)
            finally:
                time.sleep(0 if is_early else seconds)

        return late


shaker = Shaker()


def _is_real_time() -> bool:
    runner = getattr(_core._run.GLOBAL_RUN_CONTEXT, "runner", None)
    return runner is not None and isinstance(runner.clock, _core._run.SystemClock)


def install() -> None:
    """Puts the delays into trio, for the rest of the process."""
    wait_readable, run_sync, sleep, run = _core.wait_readable, _threads.to_thread_run_sync, trio.sleep, _core.run

    async def late_wait_readable(source):
        await wait_readable(source)
        seconds = shaker.late_seconds(LATE_SHARE)
        if seconds and _is_real_time():
            await sleep(seconds)

    async def late_run_sync(function, *arguments, **options):
        return await run_sync(shaker.late(function) if _is_real_time() else function, *arguments, **options)

    async def short_sleep(seconds):
        is_look = 0 < seconds <= LOOK_SECONDS_MAX and sys._getframe(1).f_code.co_filename.startswith(_TESTS)
        if shaker.is_on and is_look and _is_real_time():
            time.sleep(0.0001)  # noqa: ASYNC251 - threads go on meanwhile, and the loop does not
            await trio.lowlevel.checkpoint()
        else:
            await sleep(seconds)

    def shaken_run(function, *arguments, instruments=(), **options):
        return run(function, *arguments, instruments=(*instruments, shaker), **options)

    _core.wait_readable = trio.lowlevel.wait_readable = late_wait_readable
    trio.to_thread.run_sync = late_run_sync
    trio.sleep = short_sleep
    trio.run = shaken_run


if SEED:
    install()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(item):
        shaker.begin(SEED + item.nodeid)
        yield
        shaker.end()
