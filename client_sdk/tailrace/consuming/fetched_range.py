"""Parts of a segment's file that are fetched together. Sans-IO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.wire.file_parts import PART_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.block import Block


class FetchedRange:
    """Bytes of a segment's file that are fetched together, in parts of PART_BYTES_MAX bytes at most.

    ``held_bytes`` count for the window until the range is dropped.
    """

    def __init__(self, segment_id: bytes, offset: int, nbytes: int) -> None:
        self.segment_id = segment_id
        self.offset = offset
        self.nbytes = nbytes
        self.held_bytes = nbytes
        self.parts = [
            (begin, min(PART_BYTES_MAX, offset + nbytes - begin))
            for begin in range(offset, offset + nbytes, PART_BYTES_MAX)
        ]
        self._pieces: list[memoryview | None] = [None] * len(self.parts)
        self._missing = len(self.parts)
        self.data: memoryview | None = None  # all of it, once the last part has come

    def take(self, part: int, data: memoryview) -> None:
        """Takes the bytes of a part."""
        assert self._pieces[part] is None, "a part comes once"
        self._pieces[part] = data
        self._missing -= 1
        if not self._missing:
            self.data = data if len(self.parts) == 1 else memoryview(b"".join(filter(None, self._pieces)))
            self._pieces.clear()


class BlockRange(FetchedRange):
    """The blocks from number ``next_number`` to ``stop`` - 1 of a segment, which are handed out once.

    ``parse(number, data, offset)`` returns block ``number`` of the file's bytes ``data`` from ``offset`` on.
    """

    def __init__(
        self,
        segment_id: bytes,
        offset: int,
        nbytes: int,
        *,
        first: int,
        stop: int,
        parse: Callable[[int, memoryview, int], Block],
    ) -> None:
        super().__init__(segment_id, offset, nbytes)
        self._parse = parse
        self.next_number = first
        self.stop = stop

    @property
    def is_done(self) -> bool:
        """Whether every block was handed out."""
        return self.next_number == self.stop

    def next_block(self) -> Block:
        """Returns the next block. Raises BadSegment if its bytes are not those of the segment."""
        assert self.data is not None, "the range has come"
        number = self.next_number
        self.next_number += 1
        return self._parse(number, self.data, self.offset)
