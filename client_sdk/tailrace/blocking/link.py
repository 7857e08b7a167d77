"""The blocking shell of a session: connects, reconnects, moves the bytes while a caller waits.

Threads may share it. Of those that wait, one at a time is the mover: it connects, sends and reads for all of them. The
others sleep until their own wait is over, or until they are to be the mover. Only the mover waits at the socket, and it
holds no lock of the session then, so that others can queue and send requests meanwhile.

A mover holds a lock of its own while it is in ``run_until``. An interrupt cannot leave that lock held, because ``with``
releases it without a step of Python in between. So a mover that is gone is known by its free lock.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from tailrace.blocking.dialer import Dialer, LayeredSocket
from tailrace.blocking.guard import Guard, raise_foreign, wake
from tailrace.blocking.watch import look
from tailrace.errors import TailraceError, Unreachable
from tailrace.link.connection import LinkCore, LinkSession
from tailrace.link.finder import LONG_WAIT_SECONDS
from tailrace.link.rules import TICK_SECONDS
from tailrace.requests.lone_calls import LoneCall
from tailrace.socket_poll import Ready, SocketPoll

_T = TypeVar("_T")

RECEIVE_BYTES = 256 * 1024
LONE_BYTES = 16 * 1024  # of the first read of a lone call's answer
_TAKES_BYTES = select.POLLOUT
# Linux takes 1,024 buffers in one call; half of them is a megabyte of small requests.
BUFFERS_MAX = 512
# After a longer pause between calls the link reads before it sends, because the node may have ended the connection.
IDLE_SECONDS = 1.0
# A call takes the short way only so soon after the link has last looked for a dead node and a later leader, and a
# tick.
LONE_SECONDS = 0.2
# The most seconds of one try at one address, even if the caller waits longer.
TRY_SECONDS_MAX = 10.0


class BlockingLink:
    """Keeps a session connected while ``run_until`` runs. Threads may share it; see the module.

    ``guard.lock`` is held around calls of the session. Only the mover uses the dialer, the finder and the poll object.
    """

    def __init__(self, session: LinkSession, core: LinkCore, tls: ssl.SSLContext | None = None) -> None:
        self._session = session
        self._core = core
        core.bound_tries(TRY_SECONDS_MAX)
        self._tls = tls
        self._dialer = Dialer(core, tls)
        self._sock: socket.socket | LayeredSocket | None = None
        self._plain: socket.socket | None = None  # the same, if it has no layers
        self._poll = SocketPoll()
        self._waits_to_send = False  # the poll object tells when the socket takes bytes
        self._out: collections.deque[memoryview] = collections.deque()
        self.heard_at = self._said_at = self._moved_at = 0.0  # ``heard_at``: when bytes have come last
        self.stepped_at = time.monotonic()  # when a step has ended last
        self._looks_at = 0.0  # when a step looks around next
        self.guard = Guard()
        # The thread that moves bytes, and the lock that it holds as long as it does. A free lock: no thread.
        self._mover: tuple[int, threading.Lock] = (0, threading.Lock())
        self._waiting: dict[threading.Lock, Callable[[], bool]] = {}  # wake-up locks of waiting threads
        self._is_closed = False

    def take_pause(self) -> float:
        """Returns the seconds during which no thread has moved bytes; 0 if they are below ``IDLE_SECONDS``.

        Raises WrongProcess, or TailraceError after an interrupted step, as ``run_until`` and ``push`` do.
        """
        with self.guard.lock:
            self.guard.check()
            paused_s = time.monotonic() - self.stepped_at
            if paused_s < IDLE_SECONDS or self._has_mover():
                return 0.0
            self.stepped_at += paused_s
            return paused_s

    def run_until(self, done: Callable[[], bool], deadline: float | None) -> bool:
        """Moves bytes until ``done()``. Returns False if ``deadline`` (monotonic seconds) came first.

        After a deadline that has passed, bytes still move once without waiting: a program may poll with a time-out of
        0. Other threads call ``done``, too, with the lock held.

        Raises errors that no retry can mend: Forbidden, or a ProtocolError of the greeting. Raises Unreachable after
        ``close``.
        """
        self.check_caller()
        moving, turn = threading.Lock(), threading.Lock()
        try:
            with moving:
                return self._move_or_sleep(done, deadline, moving, turn)
        finally:
            # If an interrupt comes before this, the others find out by themselves within a tick.
            with self.guard.lock:
                if self._waiting:
                    self._leave(turn)

    def _move_or_sleep(
        self, done: Callable[[], bool], deadline: float | None, moving: threading.Lock, turn: threading.Lock
    ) -> bool:
        guard, waiting_since = self.guard, time.monotonic()
        is_over = False
        while True:
            with guard.lock:
                guard.check()
                if done():
                    return True
                if is_over:
                    return False
                if self._is_closed:
                    raise Unreachable("the client was closed: connect again")
                wait_s = TICK_SECONDS
                if deadline is not None:
                    wait_s = max(min(TICK_SECONDS, deadline - time.monotonic()), 0.0)
                mover = self._mover[1]
                moves = mover is moving or not mover.locked()
                if moves:
                    self._mover = threading.get_ident(), moving
                else:
                    self._send_beside_mover()
                    turn.acquire(blocking=False)
                    self._waiting[turn] = done
                sock, heard_at = self._sock if moves else None, self.heard_at
                if sock is not None:
                    self._do(self._send, sock)
                    if self.heard_at != heard_at and done():  # after a pause it has read before it has sent
                        return True
            if not moves:
                if mover.locked():  # else it has ended meanwhile, and may not have seen that this thread waits
                    turn.acquire(timeout=wait_s)
                self._expire()
            elif sock is None:
                self._connect(wait_s)
                self._look_around(waiting_since)
            else:
                # Waits without the lock, so that others can queue and send. A step of theirs may be interrupted
                # meanwhile. A new step would hide that, so each one checks.
                ready = self._poll.wait(wait_s)
                with guard.lock:
                    if self._sock is sock:
                        self._do(self._read, ready)
                        if not self._waiting and self._moved_at < self._looks_at and done():
                            return True
                self._look_around(waiting_since)
            is_over = deadline is not None and time.monotonic() >= deadline

    def call_alone(self, call: LoneCall) -> None:
        """Sends a call by the short way (`tailrace.requests.lone_calls`) if nothing else is under way, and reads once.

        The general way has to do a call that has not begun then, and to wait for one that has begun and not ended.
        """
        self.check_caller()
        now = time.monotonic()
        if self._waiting or now >= self._looks_at + LONE_SECONDS:
            return
        guard, moving = self.guard, threading.Lock()
        try:
            with moving:
                with guard.lock:
                    sock = self._plain
                    if sock is None or self._out or self._waits_to_send or self._has_mover():
                        return
                    guard.check_and_begin()
                    frame = call.begin(now)
                    is_sent = frame is not None and self._send_frame(sock, frame)
                    if frame is not None and not is_sent:
                        call.go_on()
                    guard.end()
                    if not is_sent:
                        return
                    self._said_at = now
                    self._mover = threading.get_ident(), moving
                ready = self._poll.wait(TICK_SECONDS)
                with guard.lock:
                    if self._sock is sock:  # else another thread has ended the connection
                        self._read_alone(call, sock if ready else None)
        finally:
            if self._waiting:
                with guard.lock:
                    self._leave(moving)

    def _read_alone(self, call: LoneCall, sock: socket.socket | None) -> None:
        """Reads once, if ``sock`` is given. The general way takes over, unless the bytes are the answer alone."""
        self.guard.check_and_begin()
        try:
            data = None if sock is None else sock.recv(LONE_BYTES)
            if data:
                self.heard_at = self._moved_at = self.stepped_at = time.monotonic()
            if not data or not call.take(data):
                call.go_on()
                if data is not None:
                    self._take(data)
        except BlockingIOError as error:
            raise_foreign(error)
            call.go_on()
        except (TailraceError, OSError) as error:
            self._end_connection(error)
        self.guard.end()

    def _look_around(self, waiting_since: float) -> None:
        """Does what follows a step: gives up requests, wakes others, and leaves a node that is dead or no leader."""
        self._expire()
        self.stepped_at = time.monotonic()
        self._looks_at = self.stepped_at + TICK_SECONDS
        if self.heard_at < self.stepped_at - TICK_SECONDS:  # else it is not dead
            self._check_silence()
        if self._core.finder.looks:
            self._look(waiting_since)

    def push(self) -> None:
        """Sends and reads without waiting. It does not read if another thread waits at the socket."""
        with self.guard.lock:
            self.guard.check()
            if self._sock is None:
                return
            if self._has_mover():
                self._send_beside_mover()
            else:  # no other thread becomes the mover meanwhile: that takes the lock
                sock = self._sock
                self._do(self._send, sock)
                ready = self._poll.now()
                if self._sock is sock:
                    self._do(self._read, ready)
                self._expire()
                self.stepped_at = time.monotonic()

    def drop(self, error: TailraceError) -> None:
        """Drops the connection and tells the session. Another one is made after a pause.

        Raises ``error`` if no retry can mend it.
        """
        self._lost(error)

    def close(self) -> None:
        """Ends the connection, and the waits of all threads; in a forked process only this process's copy of it."""
        with self.guard.lock:
            self._is_closed = True
            if not self._has_mover():
                self._dialer.close()  # else the mover does so
            self._disconnect()
            for turn in self._waiting:
                wake(turn)

    def abandon(self) -> None:
        """Closes this process's copies of the sockets, after a fork. The parent goes on with the connection.

        Other threads of the parent may have been in the middle of a step, so nothing else is touched.
        """
        self._dialer.close()
        if self._sock is not None:
            self._sock.close()

    def _disconnect(self) -> None:
        if self._sock is not None:
            if self._sock.fileno() >= 0:  # else an interrupt came after it was closed here
                with contextlib.suppress(KeyError):
                    self._poll.unregister(self._sock)
            self._sock.close()
            self._sock = self._plain = None
        self._out.clear()

    # Threads

    def _has_mover(self) -> bool:
        return self._mover[1].locked()

    def check_caller(self) -> None:
        """Raises RuntimeError if this thread is in a call already, as `Guard.check_caller`."""
        mover, lock = self._mover
        self.guard.check_caller(mover == threading.get_ident() and lock.locked())

    def _send_beside_mover(self) -> None:
        """Sends the queue while another thread waits at the socket. That thread notices a broken connection."""
        if self._sock is None:
            return
        self.guard.begin()
        try:
            self._send_data(time.monotonic())
        except (TailraceError, OSError) as error:
            raise_foreign(error)
        self.guard.end()

    def _expire(self) -> None:
        """Gives up requests whose deadline has passed, and wakes the threads whose wait is over."""
        with self.guard.lock:
            self.guard.check_and_begin()
            self._session.expire()
            self.guard.end()
            for turn, done in self._waiting.items():
                if done():
                    wake(turn)

    def _leave(self, turn: threading.Lock) -> None:
        """Ends a thread's wait: another one is the mover from now on."""
        with self.guard.lock:
            self._waiting.pop(turn, None)
            if self._waiting and not self._has_mover():
                # It returns to the list if it has to wait again. One that an interrupt has left there is woken once.
                for other in self._waiting:
                    del self._waiting[other]
                    wake(other)
                    break

    # Bytes

    def _connect(self, wait_s: float) -> None:
        try:
            sock = self._dialer.step(wait_s)
        except (TailraceError, OSError) as error:
            raise_foreign(error)
            self._lost(error)
            return
        with self.guard.lock:
            if self._is_closed:
                self._dialer.close()
                if sock is not None:
                    sock.close()
            elif sock is not None:
                self.guard.check_and_begin()
                self._sock = sock
                self._plain = sock if isinstance(sock, socket.socket) else None
                self._poll.register(sock, select.POLLIN)
                self._waits_to_send = False
                self.heard_at = self._said_at = self._moved_at = time.monotonic()
                self._session.connection_made()
                self.guard.end()

    def _do(self, step: Callable[[_T], None], argument: _T) -> None:
        """Does a step. If the connection ends, the lock is held until the session knows it.

        In between, other threads would take the step for an interrupted one.
        """
        self.guard.check_and_begin()
        try:
            step(argument)
        except (TailraceError, OSError) as error:
            self._end_connection(error)
        else:
            self.guard.end()

    def _send(self, sock: socket.socket | LayeredSocket) -> None:
        now = time.monotonic()
        if now - self._moved_at >= IDLE_SECONDS:
            # A request that is sent on an ended connection would count as sent, with an unknown outcome.
            self._moved_at = now
            self._handle(self._poll.now())
        self._send_data(now)
        waits = bool(self._out) or (not isinstance(sock, socket.socket) and sock.has_unsent)
        if waits is not self._waits_to_send:
            self._waits_to_send = waits
            self._poll.modify(sock, select.POLLIN | select.POLLOUT if waits else select.POLLIN)

    def _read(self, ready: Ready) -> None:
        self._handle(ready)
        self._moved_at = self.stepped_at = time.monotonic()

    def _send_data(self, now: float) -> None:
        peer = self._session.peer
        if peer is not None and now - self._said_at >= peer.noop_interval_s:
            self._session.noop()
        buffers = self._session.data_to_send()
        if buffers:
            self._said_at = now
            if len(buffers) == 1 and not self._out and self._plain is not None:
                buffers = self._send_alone(self._plain, buffers[0])
            self._out.extend(map(memoryview, buffers))
        if self._out or self._plain is None:
            self._write()

    def _send_alone(self, sock: socket.socket, buffer: bytes | memoryview) -> Sequence[bytes | memoryview]:
        """Sends a buffer if the queue is empty, in fewer steps than ``_write``. Returns the unsent rest."""
        try:
            sent = sock.send(buffer)
        except BlockingIOError as error:
            raise_foreign(error)
            return (buffer,)
        return () if sent == len(buffer) else (memoryview(buffer)[sent:],)

    def _send_frame(self, sock: socket.socket, frame: bytes) -> bool:
        """Sends a frame, and queues what the system does not take. Returns whether it has taken any bytes."""
        try:
            sent = sock.send(frame)
        except OSError as error:  # the general way finds out why
            raise_foreign(error)
            sent = 0
        if sent < len(frame):
            self._out.append(memoryview(frame)[sent:])
        return sent > 0

    def _handle(self, ready: Ready) -> None:
        for _, event in ready:
            if event & _TAKES_BYTES:
                self._write()
            if event & ~_TAKES_BYTES:
                self._receive()
                while (
                    self._plain is None and not isinstance(self._sock, socket.socket | None) and self._sock.has_unread
                ):  # the poll object does not see it
                    self._receive()

    def _receive(self) -> None:
        assert self._sock is not None
        place = self._session.place()
        try:
            data = self._sock.recv(RECEIVE_BYTES) if place is None else b""
            count = len(data) if place is None else self._sock.recvmsg_into(place.buffers)[0]
        except BlockingIOError as error:
            raise_foreign(error)
            return
        self.heard_at = time.monotonic()
        if place is None or not count:
            self._take(data)
        else:
            place.received(count)

    def _take(self, data: bytes) -> None:
        """Hands bytes to the session. Raises Unreachable at their end."""
        if not data:
            raise Unreachable("the node has closed the connection")
        self._session.receive_data(data)

    def _write(self) -> None:
        assert self._sock is not None
        if not isinstance(self._sock, socket.socket):
            self._sock.flush()
        while self._out:
            try:
                sent = self._sock.sendmsg(list(itertools.islice(self._out, BUFFERS_MAX)))
            except BlockingIOError as error:
                raise_foreign(error)
                return
            while sent:
                first = self._out.popleft()
                if sent < first.nbytes:
                    self._out.appendleft(first[sent:])
                    break
                sent -= first.nbytes

    def _check_silence(self) -> None:
        """Drops a connection on which no bytes arrive any more, because the machine or the network is down.

        The step before has read all bytes that had arrived, so the silence is real even if the calls were short.
        """
        if self._sock is None:
            return  # or it was closed just now
        silent_s = time.monotonic() - self.heard_at
        if self._core.is_dead(silent_s):
            self._lost(Unreachable(f"nothing heard from the node for {silent_s:.3g} s"))

    def _look(self, waiting_since: float) -> None:
        """Looks at another node if that is due, and moves to a later leader."""
        if self._sock is None:
            return
        if look(self._core, time.monotonic() - waiting_since >= LONG_WAIT_SECONDS, self._tls):
            self._lost(Unreachable("another node leads"))

    def _lost(self, error: Exception) -> None:
        """Ends the connection, or notes a failed try, which the finder has from the dialer. Raises a final error."""
        with self.guard.lock:
            self.guard.check_and_begin()
            self._end_connection(error)

    def _end_connection(self, error: Exception) -> None:
        """Ends the present step by the end of the connection. Raises ``error`` if no retry can mend it."""
        raise_foreign(error)
        was_connected = self._sock is not None
        if was_connected:
            self._dialer.begin_anew()
        self._dialer.close()
        self._disconnect()
        final = self._core.lost(error, is_reported=not was_connected)
        self.guard.end()
        if final is not None:
            raise final
