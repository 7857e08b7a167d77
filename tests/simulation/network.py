"""A network in memory: it delays, cuts and heals, and drops connections, as it is told; ``tailrace`` runs over it.

    Transport.send ──> socket buffer ──pump: delay, cut?──> inbox ──> Transport.receive

1. Each direction of a connection is a `Pipe` with a task of its own, which belongs to the network: bytes that were sent
   before an orderly end still arrive, whichever side has ended.
2. Between two machines that are cut off from each other nothing moves, and connecting hangs. Connections outlive a
   cut, unless a peer gives them up; when the cut heals, bytes that are under way go on. A way can be cut in one
   direction: bytes of the other way still arrive, and the answers do not (faults/shapes.py has the shapes of cuts).
3. A process that dies leaves its kernel behind, which ends its connections. A machine that dies ends nothing: its peers
   hear nothing, until it is up again and knows none of their connections.
4. A packet may be late: the bytes of one connection, or of one way of all connections, are held up from some byte on.
   So may be the frames of some streams, while the others of their connection pass: a node promises an order of frames
   in each stream only.
5. Buffers are bounded like those of a socket: a receiver that does not read stops the sender.
"""

from __future__ import annotations

import collections
import errno
import os
import sys

import trio

from tailrace.errors import Unreachable
from tailrace.wire.frames import FRAME_HEADER_BYTES
from tailrace.wire.opcodes import Opcode

# Small, so that writers meet full ones; a frame may be many times as large.
SOCKET_BYTES = 8 * 1024
INBOX_BYTES = 16 * 1024
# How many of its first bytes a pipe keeps.
BEGUN_BYTES = 2 * 1024


def _reset():
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


class Bell:
    """Wakes all tasks that wait, any number of times."""

    __slots__ = ("_waiting",)

    def __init__(self):
        self._waiting = {}

    async def wait(self):
        """Waits until the bell rings the next time."""
        task = trio.lowlevel.current_task()
        self._waiting[task] = None

        def abort(raise_cancel):
            del self._waiting[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def ring(self):
        """Wakes all."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for task in waiting:
                trio.lowlevel.reschedule(task)


class Pipe:
    """One direction of a connection: a socket's send buffer, the way, and the receiver's buffer."""

    def __init__(self, network, link, tap):
        self._network = network
        self.link = link  # the two machines, the sender first
        self.back = None  # the pipe of the other direction
        self.begun = b""  # the first bytes that were moved
        self.requests = {}  # the bodies of the STREAM_REQUESTs that were moved, by the ids of their streams
        self._apart = []  # frames that are held up while others pass
        self._tap = tap
        self._sent = collections.deque()
        self.sent_bytes = 0
        self.inbox = collections.deque()
        self.inbox_bytes = 0
        self.is_finished = False  # the sender has said all
        self.at_end = False  # and the receiver has heard it
        self.is_broken = False
        self.is_unread = False  # the receiver is gone
        self.changed = Bell()

    def wake(self):
        self.changed.ring()

    def push(self, data):
        self._sent.append(data)
        self.sent_bytes += len(data)
        self.wake()

    def finish(self):
        self.is_finished = True
        self.wake()

    def break_(self):
        self.is_broken = True
        self._sent.clear()
        self.inbox.clear()
        self.sent_bytes = self.inbox_bytes = 0
        self.wake()

    def deliver(self):
        """Sends what is held up before all that comes later."""
        self._sent.extendleft(reversed(self._apart))
        self.sent_bytes += sum(map(len, self._apart))
        self._apart.clear()
        self.wake()

    async def pump(self):
        """Moves all bytes that are sent, until the sender has ended or the connection is broken."""
        while not self.is_broken:
            if not self._sent:
                if self.is_finished and not self._apart:
                    self.at_end = True
                    self.wake()
                    return
                await self.changed.wait()
                continue
            if self.inbox_bytes >= INBOX_BYTES and not self.is_unread:
                await self.changed.wait()
                continue
            await self._network.way(self.link)
            if self.is_broken or not self._sent:
                continue
            data, late = self._network.parted(self, self._sent.popleft())
            if late:
                self._apart.append(late)
                self.sent_bytes -= len(late)
            if not data:
                continue
            passing = self._network.passing(self, data)
            if passing < len(data):
                self._sent.appendleft(data[passing:])
                data = data[:passing]
            if not data:
                await self.changed.wait()
                continue
            self.begun += data[: BEGUN_BYTES - len(self.begun)]
            for opcode, id, frame in frames_of(data):
                if opcode == Opcode.STREAM_REQUEST:
                    self.requests[id] = frame[FRAME_HEADER_BYTES:]
            self.sent_bytes -= len(data)
            if not self.is_unread:
                self._tap(data)
                self.inbox.append(data)
                self.inbox_bytes += len(data)
            self.wake()


def frames_of(data):
    """Yields the opcode, the id and the bytes of each frame; a torn end is a frame of opcode and id 0."""
    place = 0
    while place < len(data):
        end = place + FRAME_HEADER_BYTES + int.from_bytes(data[place : place + 4], "little")
        if len(data) < place + FRAME_HEADER_BYTES or len(data) < end:
            yield 0, 0, data[place:]
            return
        yield data[place + 4], int.from_bytes(data[place + 8 : place + 12], "little"), data[place:end]
        place = end


class Reader:
    """A task in ``receive_each``."""

    def __init__(self, take):
        self.take = take
        self.is_lent = False
        self.is_over = False
        self.has_ended = False
        self.error = None


class SimulatedTransport:
    """A ``tailrace.trio.transport.Transport``: an end of a connection, that of ``machine``."""

    def __init__(self, network, machine, peer, incoming, outgoing):
        self._network = network
        self.machine = machine
        self._peer = peer
        self.incoming = incoming
        self.outgoing = outgoing
        self._queue = collections.deque()
        self.backlog_bytes = 0
        self.on_drained = None
        self._closed = False
        self._queued = trio.Event()
        self._reader = None  # while a task is in ``receive_each``
        self._recalled = False

    @property
    def peer(self):
        return self._peer

    @property
    def is_broken(self):
        return self._closed or self.outgoing.is_broken

    def send(self, *buffers):
        if self.is_broken or self.outgoing.is_finished:
            return
        data = b"".join(buffers)
        if self._network.harm is not None:
            data, is_broken = self._network.harm(self, data)
            if is_broken:  # the rest never comes
                self.outgoing.push(data)
                self.finish()
                return
        if not data:
            return
        if not self._queue and self.outgoing.sent_bytes < SOCKET_BYTES:
            self.outgoing.push(data)
            return
        self._queue.append(data)
        self.backlog_bytes += len(data)
        self._queued.set()

    async def receive(self):
        return await self._receive(sys.maxsize)

    async def receive_into(self, buffers):
        body, header = buffers
        data = await self._receive(len(body) + len(header))
        body[: len(data)] = data[: len(body)]
        behind = data[len(body) :]
        header[: len(behind)] = behind
        return len(data)

    async def _receive(self, nbytes_max):
        await trio.lowlevel.checkpoint()
        while not self._has_news:
            await self.incoming.changed.wait()
        return self._read(nbytes_max)

    @property
    def _has_news(self):
        pipe = self.incoming
        return self._closed or pipe.is_broken or bool(pipe.inbox) or pipe.at_end

    def _read(self, nbytes_max=sys.maxsize):
        pipe = self.incoming
        if self._closed:
            return b""
        if pipe.is_broken:
            raise _reset()
        return self._take(pipe, nbytes_max) if pipe.inbox else b""

    def _take(self, pipe, nbytes_max):
        data = pipe.inbox.popleft()
        cut = min(self._network.fragment(len(data)), nbytes_max)
        if cut < len(data):
            pipe.inbox.appendleft(data[cut:])
            data = data[:cut]
        pipe.inbox_bytes -= len(data)
        pipe.wake()
        return data

    async def receive_each(self, take):
        """Hands over the bytes as they come. As with a socket, another task may wait for them and hand them over."""
        reader = self._reader = Reader(take)
        try:
            while not reader.is_over:
                await trio.lowlevel.checkpoint()
                if self._has_news and (self._closed or not reader.is_lent):
                    self._hand(reader)
                elif not reader.is_over:
                    await self.incoming.changed.wait()
        finally:
            self._reader = None
        if reader.error is not None:
            raise reader.error
        return not reader.has_ended

    def _hand(self, reader):
        """Reads once, and hands over what is there. Returns whether the reader goes on."""
        try:
            data = self._read()
            reader.has_ended = not data
            reader.is_over = not data or not reader.take(data)
        except Exception as error:
            reader.error, reader.is_over = error, True
        if reader.is_over:
            self.incoming.wake()
        return not reader.is_over

    @property
    def lending(self):
        """This transport, as a `tailrace.trio.lending.LendingTransport`."""
        return self

    def lend(self):
        if self._reader is None or self._reader.is_over:
            return False
        self._reader.is_lent = True
        return True

    def wait_in_place(self):
        """Returns whether bytes are there already. Then the call that waits for them lets no other task run."""
        return self._has_news and not self._closed

    async def wait_lent(self):
        await trio.lowlevel.checkpoint()
        self._recalled = False
        while not self._has_news and not self._recalled:
            await self.incoming.changed.wait()
        if self._closed or self._recalled:
            raise trio.ClosedResourceError

    def recall(self):
        self._recalled = True
        self.incoming.wake()

    def read_lent(self):
        reader = self._reader
        if reader is None or reader.is_over or not reader.is_lent:
            return False
        return not self._has_news or self._hand(reader)

    def take_back(self):
        if self._reader is not None:
            self._reader.is_lent = False
            self.incoming.wake()

    async def run(self):
        while not self._closed and not self.outgoing.is_broken:
            if not self._queue:
                self._queued = trio.Event()
                if self.on_drained is not None:
                    self.on_drained()
                if not self._queue:
                    await self._queued.wait()
                continue
            if self.outgoing.sent_bytes >= SOCKET_BYTES:
                await self.outgoing.changed.wait()
                continue
            data = self._queue.popleft()
            self.backlog_bytes -= len(data)
            self.outgoing.push(data)

    def finish(self):
        self.outgoing.finish()

    def close(self):
        if self._closed:
            return
        self._closed = True
        self._queue.clear()
        self.backlog_bytes = 0
        self._queued.set()
        self.outgoing.finish()
        self.incoming.is_unread = True
        self.incoming.wake()
        self._network.forget(self)

    def die(self):
        """Ends this side, whose process is gone: nothing that its tasks still do has an effect."""
        self._closed = True
        self._queue.clear()
        self.backlog_bytes = 0
        self._queued.set()
        self.incoming.wake()

    def reset(self):
        """Breaks the connection, and tells both sides."""
        self.incoming.break_()
        self.outgoing.break_()
        self._queued.set()
        self._network.forget(self)


class SimulatedListener:
    """A ``tailrace_server.host.network.Listener``."""

    def __init__(self, network, machine, address):
        self._network = network
        self.machine = machine
        self.address = address
        self._waiting = []
        self._nursery = None
        self._handler = None
        self._ended = False

    async def serve(self, handler):
        async with trio.open_nursery() as nursery:
            self._nursery, self._handler = nursery, handler
            for transport in self._waiting:
                nursery.start_soon(handler, transport)
            try:
                await trio.sleep_forever()
            finally:
                self._ended = True

    def accept(self, transport):
        if self._ended:
            transport.reset()
        elif self._nursery is None:
            self._waiting.append(transport)
        else:
            self._nursery.start_soon(self._handler, transport)

    async def aclose(self):
        self.close()

    def close(self):
        if self._network.listeners.get(self.address) is self:
            del self._network.listeners[self.address]


class Network:
    """A network between machines. ``nursery`` runs the pumps; ``tap`` is called with all bytes that arrive."""

    def __init__(self, rnd, nursery, tap):
        self._rnd = rnd
        self._nursery = nursery
        self._tap = tap
        self.listeners = {}
        self.dead = {}  # machines without power, and the event of their coming up
        self.transports = {}
        self._late = {}  # a way or a Pipe -> a function: how many of the next bytes are not held up
        self._late_frames = {}  # a way -> a function: whether a frame is held up while others pass
        self._cut = {}  # way, from one machine to another -> the event of its healing
        self.seconds_max = 0.002  # the longest delay, of one direction
        self.fragments = False
        self.harm = None  # harm(transport, data) returns what is sent instead, and whether the connection ends with it
        self.harmed = 0  # how many frames were damaged
        self._connections = 0

    # For nodes and clients

    def of(self, machine):
        """Returns the network as a machine sees it: ``listen`` for nodes, ``connect`` for clients."""
        return _Endpoint(self, machine)

    async def connect(self, machine, address):
        other = address.host
        await self.way((machine, other))
        while (up := self.dead.get(other)) is not None:  # a machine without power refuses no connection
            await up.wait()
        await self.way((other, machine))
        listener = self.listeners.get((address.host, address.port))
        if listener is None:
            raise Unreachable(f"cannot connect to {address}: {os.strerror(errno.ECONNREFUSED)}")
        self._connections += 1
        number = self._connections
        upward = Pipe(self, (machine, other), lambda data: self._tap(number, machine, other, True, data))
        downward = Pipe(self, (other, machine), lambda data: self._tap(number, machine, other, False, data))
        upward.back, downward.back = downward, upward
        client = SimulatedTransport(self, machine, str(address), downward, upward)
        server = SimulatedTransport(self, other, f"{machine}:{number}", upward, downward)
        for transport in (client, server):
            self.transports[transport] = None
        for pipe in (upward, downward):
            self._nursery.start_soon(pipe.pump)
        listener.accept(server)
        return client

    def forget(self, transport):
        self.transports.pop(transport, None)

    # Delays

    async def way(self, link):
        """Waits for the time that a packet takes from one machine to another."""
        await trio.sleep(self._rnd.uniform(0, self.seconds_max))
        while (healed := self._cut.get(link)) is not None:
            await healed.wait()

    def passing(self, pipe, data):
        """Returns how many bytes of ``data`` are not held up."""
        for late in (pipe, pipe.link):
            if late in self._late:
                return self._late[late](pipe, data)
        return len(data)

    def parted(self, pipe, data):
        """Returns the bytes of ``data`` whose frames may pass, and those of the frames that are held up."""
        is_late = self._late_frames.get(pipe.link)
        if is_late is None:
            return data, b""
        parts = {False: [], True: []}
        for opcode, id, frame in frames_of(data):
            parts[is_late(pipe, opcode, id, frame[FRAME_HEADER_BYTES:])].append(frame)
        return b"".join(parts[False]), b"".join(parts[True])

    def fragment(self, nbytes):
        """Returns how many of ``nbytes`` that have arrived are read at once."""
        if not self.fragments or self._rnd.random() < 0.8:
            return nbytes
        return self._rnd.randint(1, nbytes)

    # Faults

    def cut(self, one, other):
        """Cuts both ways between two machines, until ``heal``."""
        self.cut_ways([(one, other), (other, one)])

    def heal(self, one, other):
        self.heal_ways([(one, other), (other, one)])

    def cut_ways(self, ways):
        """Cuts these ways, each from one machine to another."""
        for way in ways:
            self._cut.setdefault(way, trio.Event())

    def heal_ways(self, ways):
        for way in ways:
            healed = self._cut.pop(way, None)
            if healed is not None:
                healed.set()

    def heal_all(self):
        self.heal_ways(list(self._cut))
        for what in [*self._late, *self._late_frames]:
            self.deliver(what)

    def hold_up(self, what, passing):
        """Holds up packets in ``what``, a Pipe or the way from one machine to another, until ``deliver``.

        ``passing(pipe, data)`` returns how many of the next bytes are not held up.
        """
        self._late[what] = passing

    def hold_up_frames(self, way, is_late):
        """Holds up frames on the way from one machine to another, while others pass, until ``deliver``.

        ``is_late(pipe, opcode, id, body)`` returns whether a frame is held up.
        """
        self._late_frames[way] = is_late

    def deliver(self, what):
        """Ends ``hold_up`` and ``hold_up_frames``."""
        is_held = [late.pop(what, None) is not None for late in (self._late, self._late_frames)]
        if any(is_held):
            for transport in self.transports:
                if what in (transport.outgoing, transport.outgoing.link):
                    transport.outgoing.deliver()

    def drop(self, transport):
        """Breaks a connection; bytes that are under way are lost."""
        transport.reset()

    def drop_all(self, machines):
        """Breaks all connections of these machines."""
        for transport in list(self.transports):
            if transport.machine in machines:
                self.drop(transport)

    def of_machine(self, machine):
        return [transport for transport in self.transports if transport.machine == machine]

    def process_died(self, machine):
        """Ends the connections of a dead process, as its kernel does: they finish, or they are reset."""
        self._stop_listening(machine)
        for transport in self.of_machine(machine):
            transport.die()
            if self._rnd.random() < 0.5:
                transport.reset()
            else:
                transport.outgoing.finish()
                transport.incoming.is_unread = True
                transport.incoming.wake()
                self.forget(transport)

    def machine_died(self, machine):
        """Ends a machine without power: its peers hear nothing, and its bytes under way are lost."""
        self._stop_listening(machine)
        self.dead[machine] = trio.Event()
        for transport in self.of_machine(machine):
            transport.die()
            transport.outgoing.is_unread = True  # lost on the way

    def machine_up(self, machine):
        """Starts a machine, which resets all connections that it had before."""
        if machine in self.dead:
            self.dead.pop(machine).set()
        for transport in self.of_machine(machine):
            transport.reset()

    def _stop_listening(self, machine):
        for listener in list(self.listeners.values()):
            if listener.machine == machine:
                listener.close()


class _Endpoint:
    def __init__(self, network, machine):
        self._network = network
        self._machine = machine

    async def listen(self, host, port):
        address = (host, port)
        if address in self._network.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = SimulatedListener(self._network, self._machine, address)
        self._network.listeners[address] = listener
        return listener

    async def connect(self, address):
        return await self._network.connect(self._machine, address)
