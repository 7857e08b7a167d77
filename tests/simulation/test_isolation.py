"""A run takes nothing from outside of it: no thread, process or socket, no file but those of indexes, no other time or
randomness."""

import os
import random
import socket
import subprocess
import threading
import time

import pytest
import trio

from tailrace_server.host.clock import SystemClock

from .world import simulate

pytestmark = pytest.mark.slow

OUTSIDE = [
    (threading.Thread, "start"),
    (subprocess.Popen, "__init__"),
    (trio.to_thread, "run_sync"),
    (socket.socket, "connect"),
    (socket.socket, "bind"),
    (os, "open"),
    (os, "urandom"),
    (time, "time"),
    (time, "time_ns"),
    (time, "monotonic"),
    (SystemClock, "monotonic"),
    (random, "random"),
]


def test_a_run_takes_nothing_from_outside(monkeypatch):
    simulate(4)  # imports all modules that a run imports late
    taken = []

    def note(name, original):
        def call(*arguments, **keywords):
            taken.append(name)
            return original(*arguments, **keywords)

        return call

    for owner, name in OUTSIDE:
        monkeypatch.setattr(owner, name, note(f"{owner.__name__}.{name}", getattr(owner, name)))
    simulate(4)
    assert not taken
