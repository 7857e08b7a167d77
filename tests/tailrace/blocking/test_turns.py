"""Each wait ends by what it waits for, and not only by the next tick: beside other threads, and after a pause."""

from __future__ import annotations

import select
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from tests.tailrace.blocking.test_threads import started

from tailrace.blocking import link as link_module
from tailrace.blocking.link import BlockingLink


class Session:
    """Keeps what the node has said."""

    peer = None
    heard = b""

    def receive_data(self, data):
        self.heard += data

    def data_to_send(self):
        return []

    def place(self):
        return None

    def expire(self):
        pass


class Call:
    """A lone call whose answer does not come alone."""

    def begin(self, now):
        return b"begun"

    def take(self, data):
        return False

    def go_on(self):
        return True


@pytest.fixture
def ends(monkeypatch):
    """A link without ticks, and the node's end of its connection."""
    monkeypatch.setattr(link_module, "TICK_SECONDS", 1_000.0)
    near, far = socket.socketpair()
    core = SimpleNamespace(
        bound_tries=lambda seconds: None, finder=SimpleNamespace(looks=False), is_dead=lambda seconds: False
    )
    link = BlockingLink(Session(), core)
    with near, far:
        near.setblocking(False)
        far.settimeout(60)
        link._sock = link._plain = near
        link._poll.register(near, select.POLLIN)
        link._looks_at = float("inf")
        link._moved_at = time.monotonic()
        yield link, far


def waiting_for(link, letter):
    """Starts a thread that waits for a letter, and returns once it is among those that wait beside the mover."""
    before = len(link._waiting)
    [thread] = started(lambda: link.run_until(lambda: letter in link._session.heard, None))
    while len(link._waiting) == before:
        thread.join(0.001)
    return thread


def test_the_answers_that_a_lone_call_has_read_wake_all_who_wait_for_them(ends):
    link, far = ends
    [lone] = started(lambda: link.call_alone(Call()))
    assert far.recv(100) == b"begun"
    late, soon = waiting_for(link, b"l"), waiting_for(link, b"s")
    far.send(b"as")
    lone.ended()
    assert soon.ended()
    assert late.is_alive()
    far.send(b"l")
    assert late.ended()


def test_a_mover_that_ends_before_another_thread_waits(ends, monkeypatch):
    link, far = ends
    moving = threading.Lock()
    moving.acquire()
    link._mover = 0, moving
    monkeypatch.setattr(link, "_send_beside_mover", moving.release)
    [other] = started(lambda: link.run_until(lambda: b"o" in link._session.heard, None))
    far.send(b"o")
    assert other.ended()


def test_bytes_that_have_come_in_a_pause_end_a_wait(ends):
    link, far = ends
    link._moved_at = 0.0
    far.send(b"p")
    [thread] = started(lambda: link.run_until(lambda: b"p" in link._session.heard, None))
    assert thread.ended()
