"""Adds the rows of a writer or stage under trio to an outbox, and waits for room."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from tailrace.errors import WrongProcess
from tailrace.link.forks import OfOneProcess
from tailrace.model import Delete, Put
from tailrace.model.documented import documented
from tailrace.requests.batch import check_value
from tailrace.requests.outbox import Outbox
from tailrace.requests.senders import RowSender
from tailrace.trio.room import Room


class Sender(OfOneProcess):
    """The base of `Writer` and `Stage`: adds rows to an outbox. Entering them gives it the outbox.

    Ctrl-C comes at checkpoints only, by trio's protection, which costs a call nothing. In between it would leave a row
    half added.
    """

    _outbox: Outbox

    def __init__(self) -> None:
        self._room = Room()
        self._is_told = False  # rows were added since a writer's last look
        self._has_rows = trio.Event()  # the same, to wait for: to ask it takes longer

    def _added(self) -> None:
        self._has_rows.set()  # a writer under trio makes another event each time
        self._is_told = True

    def _forked(self, error: WrongProcess) -> None:
        self._outbox.refuse(error)

    @documented(
        RowSender.put,
        "It is a checkpoint only if it has to wait, and after each batch. If it is cancelled, the row is not added.",
    )
    @trio.lowlevel.enable_ki_protection
    async def put(self, key: bytes, value: bytes, *, ttl: int | None = None) -> None:
        plain = self._outbox.plain
        if plain is not None and ttl is None and plain.add(key, value):
            return  # as below, in fewer steps: most rows are plain, and the outbox is open
        if not self._outbox.is_open:
            await self._room.enter(self._outbox)
        if value is None:
            check_value(value)  # to a batch it would be a deletion
        if not self._is_told:
            self._added()  # plain rows do not tell of themselves
        self._outbox.add(key, value, ttl)

    @documented(RowSender.delete, "If it is cancelled, the deletion is not added.")
    @trio.lowlevel.enable_ki_protection
    async def delete(self, key: bytes) -> None:
        if not self._outbox.is_open:
            await self._room.enter(self._outbox)
        if not self._is_told:
            self._added()
        self._outbox.add(key, None)

    @documented(
        RowSender.write,
        "It is a checkpoint after each batch. If it is cancelled, the first rows of each partition may have been "
        "added, and these are sent; a seal includes them.",
    )
    @trio.lowlevel.enable_ki_protection
    async def write(self, changes: Sequence[Put | Delete]) -> None:
        for _ in self._outbox.extend_all(changes, self._added):
            await self._room.enter(self._outbox)
