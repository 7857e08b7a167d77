"""Runs trio on virtual time, at a fraction of the cost of `trio.testing.MockClock`.

A run has no input but its seed, and does no I/O. So its loop does not ask the system for events: if no task can run,
time goes on to the next deadline at once. A sleep is an entry in the heap of deadlines, without a cancel scope. Tasks
run in the same order as with trio's own loop and a `MockClock`; test_virtual_time.py compares the two.

Only this module and scheduling.py use private names of trio.
"""

from __future__ import annotations

import contextlib
import math
from unittest import mock

import trio
from outcome import Error, Value
from trio._core import _run
from trio._core._traps import CancelShieldedCheckpoint, WaitTaskRescheduled
from trio.lowlevel import Abort

# The passes of the loop between two looks for Ctrl-C.
PASSES = 256


class VirtualClock(trio.abc.Clock):
    """A clock that stands while tasks run. ``is_stuck``: all tasks have waited, and none of them for a time."""

    def __init__(self):
        self._now = 0.0
        self.is_stuck = False

    def start_clock(self):
        """Does nothing: the clock begins at 0."""

    def current_time(self):
        return self._now

    def deadline_to_sleep_time(self, deadline):
        raise NotImplementedError("the loop on virtual time never sleeps")

    def jump(self, seconds):
        """Lets this time pass at once."""
        self._now += seconds

    def get_stuck(self):
        """Notes that no time can come to which the clock would go on."""
        if self.is_stuck:
            raise RuntimeError("the tasks do not end when they are cancelled")
        self.is_stuck = True


class _Nothing:
    """The outcome None, which serves any number of tasks; trio's own serve one."""

    __slots__ = ()

    def unwrap(self):
        return None


NOTHING = _Nothing()


class Alarm:
    """Wakes the present task after some seconds: stands in trio's heap of deadlines in place of a cancel scope.

    ``is_shielded``: a cancellation waits for the deadline.
    """

    __slots__ = ("_deadlines", "_is_shielded", "_registered_deadline", "_task")

    def __init__(self, seconds, *, is_shielded=False):
        context = _run.GLOBAL_RUN_CONTEXT
        self._task = context.task
        self._deadlines = context.runner.deadlines
        self._is_shielded = is_shielded
        deadline = context.runner.clock.current_time() + seconds
        self._registered_deadline = deadline  # trio's name: the heap drops entries whose deadline is another one
        self._deadlines.add(deadline, self)

    async def ring(self):
        """Waits until the deadline."""
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def ring_now(self):
        """Wakes the task now, if it still waits."""
        if self._registered_deadline != math.inf:
            self._remove()
            trio.lowlevel.reschedule(self._task, NOTHING)

    def _remove(self):
        self._deadlines.remove(self._registered_deadline, self)
        self._registered_deadline = math.inf

    def _cancel(self, reason):
        """Ends the wait at the deadline; trio's name."""
        self.ring_now()

    def _abort(self, raise_cancel):
        if self._is_shielded:
            return Abort.FAILED
        self._remove()
        return Abort.SUCCEEDED


async def sleep(seconds):
    """Sleeps as `trio.sleep` does."""
    if seconds == 0:
        await trio.lowlevel.checkpoint()
    elif 0 < seconds < math.inf:
        await Alarm(seconds).ring()
    elif seconds == math.inf:
        await trio.sleep_forever()
    else:
        raise ValueError(f"cannot sleep for {seconds} s")


@trio.lowlevel.enable_ki_protection
def _run_tasks(runner, async_fn, args, host_uses_signal_set_wakeup_fd=False):
    """Runs all tasks, in place of trio's `unrolled_run`: yields how long to wait for events."""
    context, clock, deadlines = _run.GLOBAL_RUN_CONTEXT, runner.clock, runner.deadlines
    runner.entry_queue.wakeup.wakeup_on_signals()
    runner.init_task = runner.spawn_impl(runner.init, (async_fn, args), None, "<init>", system_task=True)
    passes = 0
    try:
        while runner.tasks:
            passes += 1
            if passes % PASSES == 0:
                runner.io_manager.process_events((yield 0))
            if not runner.runq:
                deadline = deadlines.next_deadline()
                if deadline < math.inf:
                    clock.jump(max(0.0, deadline - clock.current_time()))
                elif runner.main_task_outcome is None:
                    clock.get_stuck()
                    runner.main_task.parent_nursery.cancel_scope.cancel()
                else:  # trio ends its own tasks by a byte that its loop sends to itself
                    runner.io_manager.process_events((yield 1.0))
            deadlines.expire(clock.current_time())
            batch = list(runner.runq)
            runner.runq.clear()
            if len(batch) > 1:
                batch.sort(key=_age)
                _run._r.shuffle(batch)
            while batch:
                _step(runner, context, batch.pop())
    finally:
        runner.close()
        context.__dict__.clear()


def _age(task):
    return task._counter


def _step(runner, context, task):
    """Runs a task until it waits or ends."""
    context.task = task
    send, value = task._next_send_fn, task._next_send
    task._next_send_fn = task._next_send = None
    try:
        message = task.context.run(send, value)
    except StopIteration as stop:
        ending = Value(stop.value)
    except BaseException as error:
        ending = Error(error.with_traceback(error.__traceback__.tb_next))
    else:
        task._schedule_points += 1
        if message is CancelShieldedCheckpoint:
            runner.reschedule(task, NOTHING)
        else:
            assert type(message) is WaitTaskRescheduled, message
            task._cancel_points += 1
            task._abort_func = message.abort_func
            if runner.ki_pending and task is runner.main_task:
                task._attempt_delivery_of_pending_ki()
            if task._cancel_status.effectively_cancelled:
                task._attempt_delivery_of_any_pending_cancel()
        del context.task
        return
    runner.task_exited(task, ending)
    del context.task


@contextlib.contextmanager
def virtual_time():
    """Returns a context with a clock for a run of trio on virtual time in it.

    Raises:
        RuntimeError: All tasks wait for each other.
    """
    clock = VirtualClock()
    with mock.patch.object(_run, "unrolled_run", _run_tasks), mock.patch.object(trio, "sleep", sleep):
        try:
            yield clock
        except trio.Cancelled as error:
            if clock.is_stuck:
                raise RuntimeError("all tasks wait, and none of them for a time") from error
            raise
