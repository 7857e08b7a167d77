"""Tells which files of the journal hold something of a partition that no other file holds yet. Pure.

A block needs the journal until the manifest names a segment with it. A control record needs it until a manifest is
written after it. The journal may drop a file when no partition references it or an older one.
"""

from __future__ import annotations


class JournalReferences:
    """The references of one partition. Files are numbers of journal files, which only grow."""

    __slots__ = ("_blocks", "_controls")

    def __init__(self) -> None:
        self._blocks: dict[int, int] = {}  # file -> the last seq in it, in the order of the files
        self._controls: list[int] = []  # the file of each control record, in the order of the records

    def block(self, file: int, last_seq: int) -> None:
        """Notes that ``file`` has a block that ends at ``last_seq``, or a record about seqs up to there."""
        if last_seq > self._blocks.get(file, -1):
            self._blocks[file] = last_seq

    def control(self, file: int) -> None:
        """Notes that ``file`` has a control record: one that changed the partition and is not a block."""
        self._controls.append(file)

    @property
    def controls(self) -> int:
        """The number of control records that a manifest of the partition's present state covers."""
        return len(self._controls)

    def manifest_written(self, controls: int, flushed_seq: int) -> None:
        """Drops the references that a durable manifest covers.

        ``controls`` is the property's value when the manifest was made. Its segments go up to ``flushed_seq``.
        """
        del self._controls[:controls]
        for file in [file for file, last_seq in self._blocks.items() if last_seq <= flushed_seq]:
            del self._blocks[file]

    def cut(self, seq: int, flushed_seq: int) -> None:
        """Drops the references of blocks above ``seq``, after a rollback. Segments go up to ``flushed_seq``."""
        self._blocks = {file: min(last_seq, seq) for file, last_seq in self._blocks.items()}
        self.manifest_written(0, flushed_seq)

    @property
    def waits_for_manifest_only(self) -> bool:
        """Whether only control records are referenced: writing the manifest is enough."""
        return not self._blocks

    @property
    def oldest(self) -> int | None:
        """The oldest file that is still referenced; None if no file is."""
        return min((*self._controls[:1], *list(self._blocks)[:1]), default=None)
