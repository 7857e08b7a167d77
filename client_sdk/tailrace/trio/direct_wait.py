"""Waits for sockets in the place of trio's loop, while requests come one soon after the other.

    trio: all tasks wait ──> before_io_wait ──> [ the sockets, and trio's own set ] ──a socket──> its function ─┐
                                  ^                     ^  │                                                    │
          trio: waits, runs tasks │                     └──┼────────── no task is to run, no deadline is due ───┤
                 ^                │                        │ trio's set is ready                                │
                 └────────────────┴────────────────────────┴──────────<── trio is woken ── otherwise ───────────┘

A pass of trio's loop for a request is a task that wakes up and waits again, two waits and the arming of one of them: as
much processor time as `recv` and `send` take together. Here a request takes one wait. A function of a socket that wakes
a task costs more than without this, so it ends after a few of these, and if nothing comes soon.

It may poll for the next request before it sleeps, trio's set with it (`tailrace.link.busy_polling`). No task is to run
then, and no deadline is due.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import trio

from tailrace.link.busy_polling import BusyPolling
from tailrace.processors import has_spare_processor
from tailrace.trio.trio_loop import TrioLoop

# It ends after these seconds without a socket.
SOON_SECONDS = 0.005
# It begins after this number of turns in a row that came that soon, and whose functions have woken no task.
PLAIN_TURNS = 4
# It ends after this number of turns in a row whose functions have woken tasks.
WAKING_TURNS = 2


class DirectWait(trio.abc.Instrument):
    """Calls the functions of ready sockets from where trio would wait. trio calls ``before_io_wait``."""

    def __init__(
        self,
        epoll: select.epoll,
        calls: Mapping[int, Callable[[], bool]],
        loop: TrioLoop,
        ready_max: int,
        busy_poll_s: float,
    ) -> None:
        """``epoll`` has the sockets, ``calls`` their functions by number: at most ``ready_max`` before others' turn.

        ``busy_poll_s``: the most seconds of polling before it sleeps, if the process has a processor to spare.
        """
        self._epoll = epoll
        self._calls = calls
        self._loop = loop
        self._ready_max = ready_max
        self._polling = BusyPolling(busy_poll_s if has_spare_processor() else 0.0)
        self._look = partial(epoll.poll, 0, ready_max)
        self._plain_turns = 0  # in a row, before it begins
        self._waking_turns = 0  # in a row, since it has begun
        self._task: trio.lowlevel.Task | None = None  # while it runs
        self._failure: BaseException | None = None
        self._token = trio.lowlevel.current_trio_token()

    def is_due(self, waited: float) -> bool:
        """Notes the end of a turn for which trio has waited so many seconds. Returns whether to ``run`` now."""
        if waited > SOON_SECONDS or self._loop.runnable:
            self._plain_turns = 0
        else:
            self._plain_turns += 1
        return self._plain_turns >= PLAIN_TURNS

    async def run(self) -> None:
        """Waits in the place of trio until that does not pay any more. The set must not be in trio's meanwhile."""
        self._plain_turns = self._waking_turns = 0
        trio.lowlevel.notify_closing(self._epoll)  # a set cannot have one that has it
        self._epoll.register(self._loop.epoll, select.EPOLLIN)
        self._task = trio.lowlevel.current_task()
        trio.lowlevel.add_instrument(self)
        try:
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        finally:
            self._epoll.unregister(self._loop.epoll)
        if self._failure is not None:
            raise self._failure

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._end()
        return trio.lowlevel.Abort.SUCCEEDED

    def _end(self) -> trio.lowlevel.Task | None:
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.remove_instrument(self)
        return task

    @trio.lowlevel.enable_ki_protection
    def before_io_wait(self, timeout: float) -> None:
        """Handles what comes until trio has something to do. ``timeout``: the seconds for which trio would wait."""
        loop, calls, polling, sleeps = self._loop, self._calls, self._polling, timeout > 0
        deadline, now = loop.next_deadline(), time.perf_counter()
        due_at = now + timeout
        try:
            while True:
                if sleeps and polling.is_due:
                    events = self._poll_busily(timeout, now)
                else:
                    events = self._epoll.poll(min(timeout, SOON_SECONDS) if sleeps else 0, self._ready_max)
                    if sleeps:
                        polling.slept(time.perf_counter() - now)
                is_trios_turn = not sleeps
                for number, _ in events:
                    if number == loop.epoll:
                        is_trios_turn = True
                    elif (on_ready := calls.get(number)) is not None and not on_ready():
                        break  # the set returns the others again
                if is_trios_turn:
                    if not sleeps or len(events) == 1:
                        return
                    break  # trio's set may be empty again: a function may have read or closed a socket of it
                if not events:
                    self._leave()
                    break
                if loop.runnable:
                    self._waking_turns += 1
                    if self._waking_turns >= WAKING_TURNS:
                        self._leave()
                    break
                self._waking_turns = 0
                now = time.perf_counter()
                if loop.next_deadline() != deadline:
                    deadline = loop.next_deadline()
                    due_at = now + loop.sleep_seconds(deadline)
                timeout = due_at - now
                if timeout <= 0:
                    break
        except BaseException as error:  # trio would log it, and go on without this
            self._failure = error
            self._leave()
        # trio waits now, for as long as it has found before: it has to wake up at once.
        self._token.run_sync_soon(_nothing, idempotent=True)

    def _poll_busily(self, timeout: float, now: float) -> Sequence[tuple[int, int]]:
        """Polls before it sleeps, for ``timeout`` seconds at most in all. Returns the ready sockets."""
        polls_s = min(self._polling.seconds, timeout)
        events = self._polling.search(self._look, time.perf_counter, now + polls_s)
        return events or self._epoll.poll(min(timeout - polls_s, SOON_SECONDS), self._ready_max)

    def _leave(self) -> None:
        """Lets ``run`` return."""
        task = self._end()
        if task is not None:
            trio.lowlevel.reschedule(task)


def _nothing() -> None:
    """Does nothing."""
