"""The rows of a blocking writer or stage on their way to an outbox: they wait for room, and take turns by the lock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tailrace.block import Block
from tailrace.model import Delete, Put, Resolved
from tailrace.requests.batch import check_value
from tailrace.requests.outbox import Outbox, Settle

if TYPE_CHECKING:
    from tailrace.blocking.client import Client
    from tailrace.blocking.feed import Feed


class Sender(ABC):
    """The base of `Writer` and `Stage`: adds rows to an outbox."""

    def __init__(
        self,
        client: Client,
        feed: Feed,
        resolved: Resolved,
        *,
        batch_bytes: int,
        batch_rows: int,
        in_flight_bytes: int,
        timeout: float | None,
    ) -> None:
        self._client = client
        self._feed = feed
        self._guard = client.guard
        self._timeout = timeout
        self._outbox = Outbox(
            resolved.partitions,
            batch_bytes=batch_bytes,
            batch_rows=batch_rows,
            bytes_max=in_flight_bytes,
            send=self._send,
            kick=client.push,
        )

    @abstractmethod
    def _send(self, block: Block, settle: Settle) -> None:
        """Queues a block, as an `Outbox` needs it."""

    def put(self, key: bytes, value: bytes) -> None:
        """Adds a row. It waits first while rows of ``in_flight_bytes`` have no answer.

        Args:
            key: 1 to 4,096 bytes.
            value: At most 16 MiB.

        Raises:
            TypeError: The key or the value is not bytes. Nothing is added.
            ValueError: The key is empty, or the writer was left, or the stage was sealed. Nothing is added.
            TooLarge: The key or the value is too long. Nothing is added.
            TailraceError: An earlier row has failed.
        """
        if value is None:
            check_value(value)  # to a batch it would be a deletion
        with self._guard.lock:
            if self._outbox.is_open:
                self._outbox.add(key, value)
                return
        self._add(key, value)

    def delete(self, key: bytes) -> None:
        """Adds a deletion. It waits as `put`.

        Args:
            key: 1 to 4,096 bytes.

        Raises:
            TailraceError: As in `put`, with `TypeError` and `ValueError`.
        """
        self._add(key, None)

    def write(self, changes: Sequence[Put | Delete]) -> None:
        """Adds many rows, and waits for room as often as needed.

        Args:
            changes: The rows. If one of them is bad, none is added.

        Raises:
            TailraceError: As in `put`, with `TypeError` and `ValueError`.
        """
        lock, outbox = self._guard.lock, self._outbox
        with lock:
            outbox.check()
        for share in outbox.shares(changes):
            while not share.is_taken:
                with lock:
                    if outbox.is_open:
                        outbox.extend(share)
                        continue
                self._enter()

    def _add(self, key: bytes, value: bytes | None) -> None:
        """Adds a row as soon as there is room. Another thread may take the room, so it is checked again."""
        while True:
            with self._guard.lock:
                if self._outbox.is_open:
                    self._outbox.add(key, value)
                    return
            self._enter()

    def _ship(self, block: Block, send: Callable[[Block, Settle], None]) -> None:
        """Sends a block of the caller by ``send`` as soon as there is room."""
        while True:
            self._enter()
            with self._guard.lock:
                if self._outbox.is_open:
                    self._outbox.ship_block(block, send)
                    return

    def _enter(self) -> None:
        with self._guard.lock:
            self._outbox.check()
        self._client.run_until(lambda: self._outbox.has_room)
        with self._guard.lock:
            self._outbox.enter()
