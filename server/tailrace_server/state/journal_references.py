"""Which files of the journal hold something of a partition that has no other home yet. Pure.

A block has its home in a segment, once the manifest names it; what a control record says has its home in a manifest
that was written after it. A file of the journal can go when nothing in it, nor in an older one, is without a home.
"""

from __future__ import annotations


class JournalReferences:
    """For one partition. Files are numbers of journal files, which only grow."""

    __slots__ = ("_blocks", "_controls")

    def __init__(self) -> None:
        self._blocks: dict[int, int] = {}  # file -> the last seq that it holds, in the order of the files
        self._controls: list[int] = []  # the file of each control record, in their order

    def block(self, file: int, last_seq: int) -> None:
        """A block that ends at ``last_seq`` was written to ``file``, or what is said of seqs up to there."""
        if last_seq > self._blocks.get(file, -1):
            self._blocks[file] = last_seq

    def control(self, file: int) -> None:
        """A record that changed the partition, and is no block, was written to ``file``."""
        self._controls.append(file)

    @property
    def controls(self) -> int:
        """How many control records a manifest of the partition as it is now would be a home for."""
        return len(self._controls)

    def manifest_written(self, controls: int, flushed_seq: int) -> None:
        """A manifest is durable, made when there were so many ``controls``, with segments up to ``flushed_seq``."""
        del self._controls[:controls]
        for file in [file for file, last_seq in self._blocks.items() if last_seq <= flushed_seq]:
            del self._blocks[file]

    def cut(self, seq: int, flushed_seq: int) -> None:
        """The partition was rolled back to ``seq``: blocks above it need no home. Segments go up to ``flushed_seq``."""
        self._blocks = {file: min(last_seq, seq) for file, last_seq in self._blocks.items()}
        self.manifest_written(0, flushed_seq)

    @property
    def waits_for_manifest_only(self) -> bool:
        """Nothing but control records is without a home: writing the manifest is enough."""
        return not self._blocks

    @property
    def oldest(self) -> int | None:
        """The oldest file that is still needed; None: none is."""
        return min((*self._controls[:1], *list(self._blocks)[:1]), default=None)
