"""Adds the rows of a blocking writer or stage to an outbox: waits for room, and takes turns by the lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tailrace.block import Block
from tailrace.blocking.runner import BlockingRunner
from tailrace.errors import WrongProcess
from tailrace.link.forks import OfOneProcess
from tailrace.model import Delete, Put
from tailrace.model.documented import documented
from tailrace.requests.batch import check_value
from tailrace.requests.lane import Lane
from tailrace.requests.outbox import Outbox, Settle
from tailrace.requests.plan import RequestStep
from tailrace.requests.request import Answered
from tailrace.requests.senders import RowSender


class TimedQueue:
    """Queues the requests of one writer or stage, each with the same time-out."""

    def __init__(self, runner: BlockingRunner, timeout: float | None) -> None:
        self._runner = runner
        self._guard = runner.guard
        self._timeout = timeout
        self.kick = runner.kick

    def queue(self, step: RequestStep, done: Answered) -> None:
        """Queues a request. ``done`` is called with the answer. Raises WrongProcess in a forked process."""
        self._guard.check_process()
        self._runner.queue(step, done, self._runner.deadline(self._timeout))

    def withdraw_lane(self, lane: Lane) -> None:
        """Drops the blocks of ``lane`` that were not sent, and sends none of the others again."""
        # In a forked process the runner has another session, which has to know nothing of the parent's lanes.
        if self._guard is self._runner.guard:
            self._runner.withdraw_lane(lane)


class Sender(OfOneProcess):
    """The base of `Writer` and `Stage`: adds rows to an outbox."""

    def __init__(self, runner: BlockingRunner, outbox: Outbox) -> None:
        self._runner = runner
        self._guard = runner.guard
        self._lock, self._is_held = self._guard.lock, self._guard.is_held  # used for each row
        self._outbox = outbox
        self._guard.check_process()
        self._register()

    def _forked(self, error: WrongProcess) -> None:
        self._lock, self._is_held = threading.RLock(), bool  # no thread holds it here
        self._outbox.refuse(error)

    @documented(RowSender.put)
    def put(self, key: bytes, value: bytes, *, ttl: int | None = None) -> None:
        if value is None:
            check_value(value)  # to a batch it would be a deletion
        outbox = self._outbox
        if outbox.plain is None and self._is_held():
            self._guard.check_caller()
        with self._lock:
            if (plain := outbox.plain) is not None and ttl is None:  # as below, in fewer steps
                outbox.plain = None  # so a handler of a signal that calls this in the middle finds the lock held
                is_added = plain.add(key, value)
                outbox.plain = plain
                if is_added:
                    return
            if outbox.is_open:
                outbox.add(key, value, ttl)
                return
        self._add(key, value, ttl)

    @documented(RowSender.delete)
    def delete(self, key: bytes) -> None:
        self._add(key, None)

    @documented(RowSender.write)
    def write(self, changes: Sequence[Put | Delete]) -> None:
        self._guard.check_caller()
        lock, outbox = self._guard.lock, self._outbox
        with lock:
            outbox.check()
        for share in outbox.shares(changes):
            while not share.is_taken:
                with lock:
                    if outbox.is_open:
                        outbox.extend(share)
                        continue
                self._enter()

    def _add(self, key: bytes, value: bytes | None, ttl: int | None = None) -> None:
        """Adds a row as soon as there is room. Another thread may take the room, so it is checked again."""
        self._guard.check_caller()
        while True:
            with self._guard.lock:
                if self._outbox.is_open:
                    self._outbox.add(key, value, ttl)
                    return
            self._enter()

    def _ship(self, block: Block, send: Callable[[Block, Settle], None]) -> None:
        """Sends a block of the caller by ``send`` as soon as there is room."""
        self._guard.check_caller()
        while True:
            self._enter()
            with self._guard.lock:
                if self._outbox.is_open:
                    self._outbox.ship_block(block, send)
                    return

    def _enter(self) -> None:
        with self._guard.lock:
            self._outbox.check()
        self._runner.run_until(lambda: self._outbox.has_room)
        with self._guard.lock:
            self._outbox.enter()
