"""Iterates over a stream's mutations as Arrow record batches. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tailrace.block.lazy import pyarrow
from tailrace.consuming.events import Mutations, Rollback
from tailrace.errors import StreamEnded
from tailrace.model import EndReason

if TYPE_CHECKING:
    from tailrace.consuming.events import Event


class _BatchMaker:
    """Makes batches of events. After a rollback that no batch can tell it makes none, and raises each time."""

    def __init__(self) -> None:
        pyarrow()
        self._error: StreamEnded | None = None

    def check(self) -> None:
        """Raises StreamEnded after such a rollback."""
        if self._error is not None:
            raise self._error

    def batch(self, event: Event) -> Any | None:
        """Returns the batch of Mutations; None for other events. Raises StreamEnded for such a rollback."""
        if isinstance(event, Mutations):
            return event.to_arrow()
        if isinstance(event, Rollback) and event.keys is None:
            self._error = StreamEnded(
                f"partition {event.partition} was rolled back, and comes again from the beginning, which no batch can "
                "tell: drop its rows and consume again, or handle the Rollback in a loop over the events",
                reason=EndReason.ROLLED_BACK,
            )
        self.check()
        return None


class AsyncStream(Protocol):
    """A stream of a shell with async."""

    async def __anext__(self) -> Event: ...


class AsyncBatches:
    """An async iterator of ``pyarrow.RecordBatch``; ``Stream.batches`` makes one."""

    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream
        self._maker = _BatchMaker()

    def __aiter__(self) -> AsyncBatches:
        return self

    async def __anext__(self) -> Any:
        self._maker.check()
        while True:
            batch = self._maker.batch(await self._stream.__anext__())
            if batch is not None:
                return batch


class BlockingStream(Protocol):
    """A stream without async."""

    def __next__(self) -> Event: ...


class Batches:
    """An iterator of ``pyarrow.RecordBatch``; ``Stream.batches`` makes one."""

    def __init__(self, stream: BlockingStream) -> None:
        self._stream = stream
        self._maker = _BatchMaker()

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        self._maker.check()
        while True:
            batch = self._maker.batch(self._stream.__next__())
            if batch is not None:
                return batch
