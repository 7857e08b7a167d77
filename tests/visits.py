"""Counts how often a function is called in one step of a task, between two of its checkpoints.

A step holds the loop. One that visits all partitions of a node holds it for seconds if there are ten thousand.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter

import trio


class Visits(trio.abc.Instrument):
    """The calls of the functions that ``of`` has wrapped, by the step that made them."""

    def __init__(self):
        self._step = 0
        self._of_steps = Counter()

    def before_task_step(self, task):
        self._step += 1

    def visit(self):
        self._of_steps[self._step] += 1

    @property
    def total(self):
        return self._of_steps.total()

    @property
    def most(self):
        """The most calls of one step."""
        return max(self._of_steps.values(), default=0)

    @contextlib.contextmanager
    def of(self, monkeypatch, owner, name):
        """Counts the calls of the method ``name`` of ``owner`` while the body runs."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def counted(*args, **kwargs):
            self.visit()
            return function(*args, **kwargs)

        trio.lowlevel.add_instrument(self)
        try:
            with monkeypatch.context() as patched:
                patched.setattr(owner, name, counted)
                yield self
        finally:
            trio.lowlevel.remove_instrument(self)
