"""Acts on a call of the blocking client as soon as it waits for its node, however slow the machine is."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time

import pytest

from tailrace.blocking.dialer import Dialer
from tailrace.blocking.link import BlockingLink
from tailrace.socket_poll import SocketPoll

# The functions in which the link's methods wait: at the socket, and for the next try to connect.
_WAITS = {SocketPoll.wait.__code__, Dialer.step.__code__}


def is_waiting(thread, ways):
    """Tells whether a thread, by its number, waits within one of these methods of the link."""
    running, frame = set(), sys._current_frames().get(thread)
    while frame is not None:
        running.add(frame.f_code)
        frame = frame.f_back
    return not running.isdisjoint(_WAITS) and any(way.__code__ in running for way in ways)


@contextlib.contextmanager
def later(work, ways=(BlockingLink.call_alone, BlockingLink.run_until)):
    """Does some work in another thread once the block waits within one of these methods, or at the block's end."""
    caller, is_over = threading.get_ident(), threading.Event()

    def do():
        while not (is_over.is_set() or is_waiting(caller, ways)):
            time.sleep(0.001)
        work()

    thread = threading.Thread(target=do)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextlib.contextmanager
def handled(handler):
    """Calls a handler of signals in the block, once that waits for the node."""
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with later(lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)):
            yield
    finally:
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def interrupted(error=KeyboardInterrupt):
    """Raises an error in the block, once that waits for the node. It does not leave this context."""

    def interrupt(*_):
        raise error

    with handled(interrupt), pytest.raises(error):
        yield
