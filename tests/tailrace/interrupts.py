"""Signals that come at a given line of the SDK, for the tests of the shells."""

from __future__ import annotations

import collections
import contextlib
import dis
import os
import sys

import tailrace
from tailrace import Delete, Put

NEVER = 1 << 60
# Lines that are tried, evenly over all lines of the SDK that a few calls run. The long tier tries each line.
TRIALS = 60


def takes_no_signal(frame):
    """Tells whether Python takes no signal at this line.

    That is so before the exit of a ``with``, also by an exception, and at a ``try``, which no table of exceptions
    covers: a lock is released.
    """
    code, constants, at = frame.f_code.co_code, frame.f_code.co_consts, frame.f_lasti
    if code[at] == dis.opmap["NOP"]:
        return True
    if code[at] == dis.opmap["PUSH_EXC_INFO"] and code[at + 2] == dis.opmap["WITH_EXCEPT_START"]:
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

    Only lines at which ``is_here()`` count.

    Attributes:
        left: The lines before that one; 0 or less once it has come.
        places: The files and numbers of the lines that have run.
    """

    def __init__(self, count, handler=keyboard_interrupt, path=None, is_here=lambda: True):
        self.left = count
        self._is_here = is_here
        self.places = []
        self._handler = handler
        self._folder = path or os.path.dirname(tailrace.__file__)

    @property
    def lines(self):
        """How many lines have run."""
        return len(self.places)

    def __enter__(self):
        sys.settrace(self._of_call)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _of_call(self, frame, event, argument):
        return self._of_line if frame.f_code.co_filename.startswith(self._folder) else None

    def _of_line(self, frame, event, argument):
        if event == "line" and not takes_no_signal(frame) and self._is_here():
            self.left -= 1
            self.places.append((frame.f_code.co_filename, frame.f_lineno))
            if self.left == 0:
                sys.settrace(None)
                self._handler()
        return self._of_line


def some_lines(places, trials):
    """Numbers of lines from 1, ``trials`` of them evenly. None: each line, as it runs first, last and in between."""
    if trials is not None:
        return list(range(1, len(places) + 1, max(len(places) // trials, 1)))
    times = collections.defaultdict(list)
    for number, place in enumerate(places, 1):
        times[place].append(number)
    return sorted(
        {number for numbers in times.values() for number in (*numbers[:: max(len(numbers) // 2, 1)], numbers[-1])}
    )


class Rows:
    """The rows of a program that goes on after each interrupt, in its order.

    Attributes:
        added: Those of the calls that have returned.
        interrupts: How many calls were interrupted.
    """

    def __init__(self):
        self.added = []
        self.interrupts = 0
        self._number = 0

    def next(self, target):
        """A row for ``target``, with a key of its own."""
        self._number += 1
        return b"%s %d" % (type(target).__name__.encode(), self._number), b"v"

    def check(self, found):
        """Each row that was added is there, none is there twice, and those of each kind of target are in order."""
        found = [(row.key, row.value) for row in found]
        assert len(set(found)) == len(found), "a row is there twice"
        assert set(self.added) <= set(found), "a row is lost"
        puts = [key.split() for key, value in found if value is not None]
        for target in {target for target, _ in puts}:
            numbers = [int(number) for other, number in puts if other == target]
            assert numbers == sorted(numbers)
        for number, (key, value) in enumerate(found):
            assert value is not None or (key, b"v") not in found[number:]


class TimedOut(TimeoutError):
    """The error of a handler of SIGALRM. It is an OSError, as those of sockets are."""


def time_out():
    raise TimedOut


class Calls(Rows):
    """The calls of a program that catches the error of its handler at each of them.

    Attributes:
        failure: The error with which the client or the writer has refused a call; empty if it goes on.
    """

    def __init__(self, *errors, refusal=tailrace.TailraceError):
        """``errors`` are those of the handler, ``refusal`` that of a client which may refuse to go on after it."""
        super().__init__()
        self.failure = ""
        self._errors = errors
        self._refusal = refusal

    @contextlib.contextmanager
    def caught(self, adds):
        """Catches an error of the handler, or a refusal, in a call that adds these rows."""
        try:
            yield
        except self._errors:
            self.interrupts += 1
        except self._refusal as error:
            self.failure = str(error)
        else:
            self.added += adds

    def attempt(self, call, *arguments, adds=()):
        """Returns what the call returns; None after an error."""
        with self.caught(adds):
            return call(*arguments)

    def put(self, target):
        row = self.next(target)
        return self.attempt(target.put, *row, adds=[row])

    def write(self, target):
        rows = [self.next(target) for _ in range(4)]
        gone = rows[0][0], None
        return self.attempt(target.write, [*(Put(*row) for row in rows), Delete(gone[0])], adds=[*rows, gone])


class AsyncCalls(Calls):
    """The same of a program with async, which has to await each of them."""

    async def attempt(self, call, *arguments, adds=()):
        with self.caught(adds):
            return await call(*arguments)


def at_each_line(run, trials, handler=keyboard_interrupt, is_here=lambda: True, path=None, lines_min=300):
    """Calls ``run`` with a signal at one line of the SDK after the other, of those at which ``is_here()``."""
    with SignalAt(NEVER, path=path, is_here=is_here) as never:
        run(never)
    assert never.lines > lines_min
    for line in some_lines(never.places, trials):
        signal = SignalAt(line, handler, path, is_here)
        try:
            run(signal)
        except BaseException as error:
            raise AssertionError(f"a signal at {signal.places[-1]}, the {line}th line") from error
