"""Writes Arrow data to a feed by a writer of its own, and tells what was written if not all was. Pure.

`write_arrow` is for the shells with async. The blocking shell has the same steps without.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from tailrace.model import LevelName, VersionRange


class ArrowWriter(Protocol):
    """A writer of a shell with async."""

    @property
    def acknowledged(self) -> dict[int, VersionRange]: ...
    async def write_arrow(
        self, data: Any, *, key: str, value: str, deleted: str | None, ttl: int | str | None
    ) -> None: ...
    async def flush(self) -> dict[int, VersionRange]: ...


class ArrowFeed(Protocol):
    """A feed of a shell with async."""

    def writer(self, *, level: LevelName | None) -> AbstractAsyncContextManager[ArrowWriter]: ...


async def write_arrow(
    feed: ArrowFeed,
    data: Any,
    key: str,
    value: str,
    deleted: str | None,
    ttl: int | str | None,
    level: LevelName | None,
) -> dict[int, VersionRange]:
    """Writes ``data``, and returns the versions. Errors have a note of what was written, as `told` says."""
    async with feed.writer(level=level) as writer:
        try:
            await writer.write_arrow(data, key=key, value=value, deleted=deleted, ttl=ttl)
            return await writer.flush()
        except Exception as error:
            written = writer.acknowledged
            with contextlib.suppress(TailraceError):
                written = await writer.flush()  # what was sent before bad rows is waited for
            tell(error, written)
            raise


def tell(error: Exception, written: dict[int, VersionRange]) -> None:
    """Adds a note to the error of a call: the versions that the call has written."""
    parts = ", ".join(f"{r.partition} (seqs {r.first_seq} to {r.last_seq})" for r in written.values())
    error.add_note(f"of this call, these partitions have acknowledged rows: {parts or 'none'}")
