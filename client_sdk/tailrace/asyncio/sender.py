"""Adds the rows of a writer or stage under asyncio to an outbox, and waits for room."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tailrace.asyncio.lifetime import Lifetime
from tailrace.asyncio.room import Room
from tailrace.errors import WrongProcess
from tailrace.link.forks import OfOneProcess
from tailrace.model import Delete, Put
from tailrace.model.documented import documented
from tailrace.requests.batch import check_value
from tailrace.requests.outbox import Outbox
from tailrace.requests.senders import RowSender


class Sender(OfOneProcess):
    """The base of `Writer` and `Stage`: adds rows to an outbox. Entering them gives it the outbox."""

    _outbox: Outbox

    def __init__(self, linger_s: float | None = None) -> None:
        """After ``linger_s`` seconds, rows that were added are sent; None: never by themselves."""
        self._room = Room()
        self._linger_s = linger_s
        self._timer: asyncio.TimerHandle | None = None  # until rows leave
        self._lifetime = Lifetime()

    def _added(self) -> None:
        # A handler of a signal may raise anywhere: a second timer sends nothing twice.
        if self._timer is None and self._linger_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._linger_s, self._ship)

    def _ship(self) -> None:
        """Sends batches that have waited for more rows long enough."""
        self._timer = None
        try:
            self._outbox.ship_all()
        except Exception as error:
            self._lifetime.fail(error)

    def _forked(self, error: WrongProcess) -> None:
        self._outbox.refuse(error)

    @documented(
        RowSender.put,
        "Other tasks get their turn only if it has to wait, and after each batch. If it is cancelled, the row is not "
        "added.",
    )
    async def put(self, key: bytes, value: bytes, *, ttl: int | None = None) -> None:
        plain = self._outbox.plain
        if plain is not None and ttl is None and plain.add(key, value):
            return  # as below, in fewer steps: most rows are plain, and the outbox is open
        if value is None:
            check_value(value)  # to a batch it would be a deletion
        if not self._outbox.is_open:
            await self._room.enter(self._outbox)
        self._added()  # before the row: if it is interrupted after that, plain rows do not tell of themselves
        self._outbox.add(key, value, ttl)

    @documented(RowSender.delete, "If it is cancelled, the deletion is not added.")
    async def delete(self, key: bytes) -> None:
        if not self._outbox.is_open:
            await self._room.enter(self._outbox)
        self._added()
        self._outbox.add(key, None)

    @documented(
        RowSender.write,
        "Other tasks get their turn after each batch. If it is cancelled, the first rows of each partition may have "
        "been added, and these are sent; a seal includes them.",
    )
    async def write(self, changes: Sequence[Put | Delete]) -> None:
        for _ in self._outbox.extend_all(changes, self._added):
            await self._room.enter(self._outbox)
