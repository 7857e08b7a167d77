"""Acts on a call of the blocking client as soon as it waits for its node, however slow the machine is."""

from __future__ import annotations

import contextlib
import linecache
import os
import signal
import sys
import threading
import time

import pytest

import tailrace
from tailrace.blocking.dialer import Dialer
from tailrace.blocking.link import BlockingLink
from tailrace.socket_poll import SocketPoll

# The methods of the link in which calls wait: by the short way, and by the general one.
WAYS = BlockingLink.call_alone, BlockingLink.run_until
_SDK = os.path.dirname(tailrace.__file__)


def is_wait(frame):
    """Tells whether a frame waits at the socket, or for the next try to connect.

    An error of a handler elsewhere in a try would leave a socket to the search for garbage, which warns of it.
    """
    while frame is not None and not frame.f_code.co_filename.startswith(_SDK):
        frame = frame.f_back
    if frame is None or frame.f_code not in (SocketPoll.wait.__code__, Dialer.step.__code__):
        return False
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return frame.f_code is SocketPoll.wait.__code__ or "time.sleep(" in line


def is_waiting(thread, ways):
    """Tells whether a thread, by its number, waits within one of these methods of the link."""
    frame = sys._current_frames().get(thread)
    if not is_wait(frame):
        return False
    running = set()
    while frame is not None:
        running.add(frame.f_code)
        frame = frame.f_back
    return any(way.__code__ in running for way in ways)


@contextlib.contextmanager
def beside(work):
    """Runs ``work`` in another thread beside the block. It gets an event that is set at the block's end."""
    is_over = threading.Event()
    thread = threading.Thread(target=work, args=[is_over])
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextlib.contextmanager
def later(work, ways=WAYS):
    """Does some work in another thread once the block waits within one of these methods, or at the block's end."""
    caller = threading.get_ident()

    def do(is_over):
        while not (is_over.is_set() or is_waiting(caller, ways)):
            time.sleep(0.001)
        work()

    with beside(do):
        yield


@contextlib.contextmanager
def handled(handler):
    """Calls a handler of signals once in the block, while that waits for the node."""
    main, has_come = threading.main_thread().ident, threading.Event()

    def handle(number, frame):
        if is_wait(frame) and not has_come.is_set():
            has_come.set()
            handler(number, frame)

    def send(is_over):
        while not (has_come.is_set() or is_over.is_set()):
            if is_waiting(main, WAYS):
                signal.pthread_kill(main, signal.SIGALRM)
            time.sleep(0.001)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with beside(send):
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
