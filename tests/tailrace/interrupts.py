"""Signals that come at a given line of the SDK, for the tests of the shells."""

from __future__ import annotations

import dis
import os
import sys

import tailrace

NEVER = 1 << 60


def takes_no_signal(frame):
    """Tells whether Python takes no signal at this line.

    That is so before the exit of a ``with``, and at a ``try``, which no table of exceptions covers: a lock is released.
    """
    code, constants, at = frame.f_code.co_code, frame.f_code.co_consts, frame.f_lasti
    if code[at] == dis.opmap["NOP"]:
        return True
    if None not in constants:
        return False
    load_none = bytes([dis.opmap["LOAD_CONST"], constants.index(None)])
    return load_none * 3 in code[at : at + 10]


def keyboard_interrupt():
    """Raises what Python raises at Ctrl-C."""
    raise KeyboardInterrupt


class SignalAt:
    """Calls ``handler`` at the ``count``-th line of the SDK, or of its file ``path``, that this thread runs here.

    Attributes:
        left: The lines before that one; 0 or less once it has come.
    """

    def __init__(self, count, handler=keyboard_interrupt, path=None):
        self.left = count
        self._handler = handler
        self._folder = path or os.path.dirname(tailrace.__file__)
        self.place = "no line"  # where it has come

    @property
    def lines(self):
        """The lines that have run, of a signal that is ``NEVER`` to come."""
        return NEVER - self.left

    def __enter__(self):
        sys.settrace(self._of_call)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _of_call(self, frame, event, argument):
        return self._of_line if frame.f_code.co_filename.startswith(self._folder) else None

    def _of_line(self, frame, event, argument):
        if event == "line" and not takes_no_signal(frame):
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                self._handler()
        return self._of_line


def some_lines(count, trials):
    """Numbers of lines from 1 to ``count``, ``trials`` of them evenly; None: all."""
    return range(1, count + 1, 1 if trials is None else max(count // trials, 1))
