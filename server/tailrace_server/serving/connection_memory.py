"""The memory that the requests and answers of one connection hold, and the waits until there is room for more.

`answer_memory` sums up all connections of the node. A connection is not read from while it lacks room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from tailrace_server.serving.answer_memory import SHARE_BYTES

if TYPE_CHECKING:
    from tailrace.trio.transport import Transport
    from tailrace_server.serving.answers import Answers
    from tailrace_server.serving.services import Services
    from tailrace_server.stream.rounds import Rounds

# The most returned cookies and ends of streams that the peer does not take. Other waiting frames are counted in bytes.
UNSENT_FRAMES_MAX = 16_384


class ConnectionMemory:
    """Counts what one connection holds, and tells when the next request has to wait."""

    def __init__(self, node: Services, transport: Transport, answers: Answers, rounds: Rounds) -> None:
        self._account = node.answer_memory
        self._write_memory = node.storage.memory
        self._transport = transport
        self._answers = answers
        self._rounds = rounds
        self._bytes_max = node.config.limits.backlog_bytes_max
        self._request_bytes = 0  # of the requests that wait in tasks of their own
        self._found_bytes = 0  # of answers that are not complete, and of the chunks that are read for them
        self._unsent_bytes = 0  # of answers that were sent, and that the socket has not taken: this many at most
        self.charged_bytes = 0  # the share of this connection in the node's account
        self.writes = False  # the client writes: its requests wait for room in the write queue
        self.waits_for_writes = False  # reading pauses for that queue, so the peer cannot be called silent
        self.room: trio.Event | None = None  # there while someone waits for it
        self._is_always_read = False
        self._is_closing = False

    # Held bytes

    def hold_request(self, nbytes: int) -> None:
        """Counts the ``nbytes`` of a request that waits in a task of its own; negative: it waits no longer."""
        self._request_bytes += nbytes
        self._charge()
        if nbytes < 0:
            self._look_again()

    def hold_found(self, nbytes: int) -> None:
        """Counts ``nbytes`` more of an answer that is not complete, or less if it is negative."""
        self._found_bytes += nbytes
        self._charge()
        if nbytes < 0:
            self._look_again()

    def sent(self, nbytes: int) -> None:
        """Notes that ``nbytes`` of answers were sent, of which the socket may not have taken all."""
        backlog_bytes = self._transport.backlog_bytes
        if backlog_bytes or self.charged_bytes:
            self._unsent_bytes = min(self._unsent_bytes + nbytes, backlog_bytes)
            self._charge()
        if self.room is not None:
            self._look_again()

    def drained(self) -> None:
        """Notes that the socket has taken all that was sent."""
        if self._unsent_bytes:
            self._unsent_bytes = 0
            self._charge()
        if self.room is not None:
            self._look_again()

    def forget(self) -> None:
        """Takes this connection, which is over, and whose tasks have ended, out of the node's account."""
        self._account.forget(self._look_again)
        self._account.change(-self.charged_bytes)
        self.charged_bytes = 0

    def _charge(self) -> None:
        """Brings the node's account up to date with what this connection holds."""
        held = self._answers.held_bytes + self._unsent_bytes + self._request_bytes + self._found_bytes
        if held != self.charged_bytes:
            changed, self.charged_bytes = held - self.charged_bytes, held
            self._account.change(changed)

    # Who waits

    def has_written(self) -> None:
        """Notes that the client writes: its requests wait for room in the write queue from now on."""
        self.writes = True

    def always_read(self) -> None:
        """Has the node's account hold up this connection no more.

        Answers wait for the acknowledgements of replicas, so a replica's connection is always read.
        """
        self._is_always_read = True

    def close(self) -> None:
        """Ends all waits: the connection is closing, and may have no answer left whose way out would end them."""
        self._is_closing = True
        self._look_again()

    def lacks_room(self) -> bool:
        """Tells whether the peer has to take its answers, or the flusher has to catch up, before the next request."""
        nbytes = self._request_bytes
        if nbytes and (nbytes > self._bytes_max or self._account.refuses(nbytes)):
            return True
        return self.lacks_answer_room()

    def lacks_answer_room(self) -> bool:
        """Tells whether the answers of this connection take too much memory for another look-up."""
        held = self._answers.held_bytes + self._found_bytes
        if held + self._transport.backlog_bytes > SHARE_BYTES and self._holds_much(held):
            return True
        if self._rounds.unsent_frames > UNSENT_FRAMES_MAX:
            return True
        return self.writes and self._write_memory.must_wait

    def _holds_much(self, held: int) -> bool:
        """Tells whether ``held`` bytes of answers, with those that were sent, pass a bound."""
        if held + self._transport.backlog_bytes > self._bytes_max:
            return True
        self._charge()
        return not self._is_always_read and self._account.refuses(held + self._unsent_bytes)

    async def wait_for_room(self) -> None:
        """Waits until the peer may ask for more. A checkpoint only if it has to wait."""
        while self.lacks_room() and not self._is_closing:
            await self._wait()

    async def wait_for_answer_room(self) -> None:
        """Waits until another answer may be looked up. A checkpoint only if it has to wait."""
        while self.lacks_answer_room() and not self._is_closing:
            await self._wait()

    async def _wait(self) -> None:
        """Waits until there may be room."""
        if self.writes and self._write_memory.must_wait:
            self.waits_for_writes = True
            await self._write_memory.room()
            self.waits_for_writes = False
            return
        if self.room is None:
            self.room = trio.Event()
        self._account.when_room(self._look_again)
        await self.room.wait()

    def _look_again(self) -> None:
        """Lets those look again who wait for room, if there are any."""
        if self.room is not None:
            room, self.room = self.room, None
            room.set()
