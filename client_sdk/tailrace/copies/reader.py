"""Reads a copy of a feed that ``tailrace fetch`` has made, without a server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.block.lazy import pyarrow, require_numpy
from tailrace.block.to_arrow import batch_schema
from tailrace.copies.copy_file import open_regular
from tailrace.copies.layout import (
    CHECKPOINT_NAME,
    FEED_NAME,
    FILE_BYTES_MAX,
    FeedCopy,
    PartitionCopy,
    UnknownCopyVersion,
    decode_checkpoint,
)
from tailrace.errors import BadCopy, IncompleteCopy
from tailrace.model import FeedInfo, Item, Version
from tailrace.model.arguments import count
from tailrace.model.failover import SEQ_MAX
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.model.position import Position, Positions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tailrace.consuming.events import Mutations
    from tailrace.copies.chain import CopiedChain


T = TypeVar("T")


class SegmentReader:
    """A copy of a feed in a directory, which ``tailrace fetch FEED DIR`` has made. It needs no server.

    Each partition is a state that it had on the node, up to ``partitions[number].seq``. A ``compact`` feed may hold
    several mutations of a key there; by default only the newest of each key is read. A ``history`` feed is read whole.

    Rows come in seq order within a partition, by whole columns, and memory does not grow with the feed: a batch is in
    memory, and while the newest row of each key is found, about 300 MB and a byte for each row of the partition.

    It opens files only while it reads, so it need not be closed. Any thread or process may share it, and each of its
    iterators is for one thread. A later fetch into the same directory is not seen: open the copy again. An iterator
    that has begun a partition finishes it undisturbed.

    Attributes:
        directory: The directory.
        cluster_id: The id of the cluster that the copy comes from, 16 bytes.
        feed: The feed and its settings, a `FeedInfo`.
        partitions: The copied partitions, a mapping from the number to its `PartitionCopy`.

    Args:
        directory: The directory.
        partitions: The partitions to read. Default: all that were fetched.

    Raises:
        BadCopy: A file is missing, damaged, or of an unknown version. The message says which, and what to do.
        IncompleteCopy: A fetch was interrupted, or is under way.
        OSError: This machine refuses to read a file.
        ValueError: The copy has not fetched one of ``partitions``.
        ImportError: numpy is not installed; ``pip install 'tailrace[arrow]'`` installs it.
    """

    def __init__(self, directory: str | os.PathLike[str], *, partitions: Iterable[int] | None = None) -> None:
        """Reads FEED.json and the CHECKPOINT.json of each partition."""
        require_numpy()
        self.directory = os.fspath(directory)
        # Without its FEED.json a directory with files is no copy, so removing the file would not help.
        copy = _read(
            os.path.join(self.directory, FEED_NAME), FeedCopy.decode, _not_a_copy, "fetch into another directory"
        )
        self.cluster_id = copy.cluster_id
        self.feed: FeedInfo = copy.feed
        self._command = f"`tailrace fetch {copy.feed.name} {self.directory}`"
        wanted = copy.fetched if partitions is None else sorted({count("partitions", number) for number in partitions})
        missing = [number for number in wanted if number not in copy.fetched]
        if missing:
            raise ValueError(
                f"the copy {self.directory} has not fetched partition {missing[0]}: run {self._command} with "
                f"--partitions {missing[0]}"
            )
        self.partitions: Mapping[int, PartitionCopy] = {number: self._read_checkpoint(number) for number in wanted}

    @property
    def positions(self) -> Positions:
        """The positions at which the copy ends. A consumer with ``since=reader.positions`` goes on from there."""
        held = {number: Position.at(copy.log, copy.seq) for number, copy in self.partitions.items() if copy.log}
        return Positions(self.cluster_id, self.feed.feed_id, held)

    def mutations(
        self, partition: int, *, from_seq: int = 1, to_seq: int | None = None, latest: bool | None = None
    ) -> Iterator[Mutations]:
        """Iterates over the mutations of a partition, in the order of their seqs.

        Args:
            partition: The partition, from 0.
            from_seq: The first seq to read. Seqs above that of an earlier fetch are the changes since then; but
                deletions up to the ``purge_seq`` of the partition may be missing.
            to_seq: The last seq to read, included. Default: all.
            latest: True for only those that are the newest of their key in the copy; False for all that the copy has.
                Default: True for a ``compact`` feed.

        Returns:
            An iterator of `Mutations`, each of about a block of a segment.

        Raises:
            BadCopy: A file is missing or damaged.
            KeyError: The reader does not have the partition.
        """
        copy = self.partitions[partition]
        return self._mutations(copy, from_seq, to_seq, latest=self._is_latest(latest))

    def batches(
        self,
        rows: int = 65_536,
        *,
        partition: int | None = None,
        from_seq: int = 1,
        to_seq: int | None = None,
        latest: bool | None = None,
    ) -> Iterator[Any]:
        """Iterates over the mutations as Arrow record batches, one partition after the other.

        The columns are ``partition`` (int32), ``seq`` (int64), ``key`` (binary), ``value`` (binary, null for a
        deletion), ``deleted`` (bool) and ``timestamp`` (timestamp[us, UTC]).

        Args:
            rows: The most rows of a batch. Batches of more than 64 MiB have fewer.
            partition: One partition. Default: all of the reader.
            from_seq: The first seq to read, of each partition.
            to_seq: The last seq to read, included. Default: all.
            latest: As for `mutations`.

        Returns:
            An iterator of ``pyarrow.RecordBatch``.

        Raises:
            BadCopy: A file is missing or damaged.
            KeyError: The reader does not have the partition.
            ValueError: ``rows`` is below 1.
            ImportError: pyarrow is not installed; ``pip install 'tailrace[arrow]'`` installs it.
        """
        pyarrow()
        if rows < 1:
            raise ValueError(f"rows is {rows}, a batch has at least 1")
        copies = list(self.partitions.values()) if partition is None else [self.partitions[partition]]
        return self._batches(copies, rows, from_seq, to_seq, latest=self._is_latest(latest))

    def to_reader(
        self,
        rows: int = 65_536,
        *,
        partition: int | None = None,
        from_seq: int = 1,
        to_seq: int | None = None,
        latest: bool | None = None,
    ) -> Any:
        """Makes an Arrow reader of the same batches, for programs that take one.

        ``pyarrow.table(reader)`` and other programs that read Arrow streams also take the `SegmentReader` itself.

        Args:
            rows: The most rows of a batch.
            partition: One partition. Default: all of the reader.
            from_seq: The first seq to read, of each partition.
            to_seq: The last seq to read, included. Default: all.
            latest: As for `mutations`.

        Returns:
            A ``pyarrow.RecordBatchReader``, which reads as the program asks for batches.

        Raises:
            KeyError: The reader does not have the partition.
            ValueError: ``rows`` is below 1.
            ImportError: pyarrow is not installed.
        """
        batches = self.batches(rows, partition=partition, from_seq=from_seq, to_seq=to_seq, latest=latest)
        return pyarrow().RecordBatchReader.from_batches(batch_schema(), batches)

    def to_arrow(
        self,
        *,
        partition: int | None = None,
        from_seq: int = 1,
        to_seq: int | None = None,
        latest: bool | None = None,
    ) -> Any:
        """Reads the mutations into an Arrow table, which is in memory as a whole.

        Args:
            partition: One partition. Default: all of the reader.
            from_seq: The first seq to read, of each partition.
            to_seq: The last seq to read, included. Default: all.
            latest: As for `mutations`.

        Returns:
            A ``pyarrow.Table`` with the columns of `batches`.

        Raises:
            BadCopy: A file is missing or damaged.
            KeyError: The reader does not have the partition.
            ImportError: pyarrow is not installed; ``pip install 'tailrace[arrow]'`` installs it.
        """
        batches = self.batches(partition=partition, from_seq=from_seq, to_seq=to_seq, latest=latest)
        return pyarrow().Table.from_batches(batches, batch_schema())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Hands the batches over by Arrow's C interface: ``pyarrow.table(reader)``, and other libraries."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def get(self, key: bytes) -> Item | None:
        """Returns the current value of a key. It opens the files of the partition: for many keys read the batches.

        Args:
            key: The key.

        Returns:
            The item; None if the key does not exist.

        Raises:
            BadCopy: A file is missing or damaged.
            KeyError: The reader does not have the partition of the key.
        """
        hash_ = key_hash(key)
        copy = self.partitions[partition_of_hash(hash_, self.feed.partitions)]
        with self._open(copy) as chain:
            found = chain.find(key, hash_)
        if found is None or found.value is None:
            return None
        branch = copy.log.branch_at(found.seq) if copy.log else b""
        return Item(key, found.value, Version(copy.partition, branch, found.seq), found.timestamp)

    def verify(self) -> int:
        """Reads every file whole, and compares it with its checksum. Reading verifies each block by itself, too.

        Returns:
            The bytes that it read.

        Raises:
            BadCopy: A file is missing or damaged.
        """
        nbytes = 0
        for copy in self.partitions.values():
            with self._open(copy) as chain:
                nbytes += chain.verify()
        return nbytes

    def __repr__(self) -> str:
        return f"<SegmentReader of {self.feed.name!r} in {self.directory!r}: {len(self.partitions)} partitions>"

    def _is_latest(self, latest: bool | None) -> bool:
        return self.feed.retention == "compact" if latest is None else latest

    def _mutations(
        self, copy: PartitionCopy, from_seq: int, to_seq: int | None, *, latest: bool
    ) -> Iterator[Mutations]:
        with self._open(copy) as chain:
            yield from chain.mutations(from_seq, SEQ_MAX if to_seq is None else to_seq, latest=latest)

    def _batches(
        self, copies: list[PartitionCopy], rows: int, from_seq: int, to_seq: int | None, *, latest: bool
    ) -> Iterator[Any]:
        from tailrace.copies.arrow import record_batches

        for copy in copies:
            with self._open(copy) as chain:
                pieces = chain.arrays(from_seq, SEQ_MAX if to_seq is None else to_seq, latest=latest)
                yield from record_batches(pieces, copy.partition, rows)

    def _open(self, copy: PartitionCopy) -> CopiedChain:
        from tailrace.copies.chain import CopiedChain  # imports numpy, which `import tailrace` does not need

        directory = os.path.join(self.directory, str(copy.partition))
        return CopiedChain(directory, self.feed.feed_id, copy, self._command)

    def _read_checkpoint(self, partition: int) -> PartitionCopy:
        def missing(path: str) -> BadCopy:
            return IncompleteCopy(
                f"{path} is missing: a fetch was interrupted, or is under way; run {self._command} again", path=path
            )

        path = os.path.join(self.directory, str(partition), CHECKPOINT_NAME)
        remedy = f"remove it, and run {self._command} again"
        return _read(path, lambda data: decode_checkpoint(data, self.feed.feed_id, partition), missing, remedy)


def _not_a_copy(path: str) -> BadCopy:
    return BadCopy(
        f"{path} is missing: the directory is no copy of a feed; `tailrace fetch FEED DIR` makes one", path=path
    )


def _read(path: str, decode: Callable[[bytes], T], missing: Callable[[str], BadCopy], remedy: str) -> T:
    """Reads and decodes a file. Raises the error of ``missing``, BadCopy with ``remedy`` for other content, OSError."""
    try:
        with open(open_regular(path), "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise missing(path) from None
    try:
        if len(data) > FILE_BYTES_MAX:
            raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
        return decode(data)
    except UnknownCopyVersion as error:
        raise BadCopy(f"{path}: {error}; read it with the Tailrace that fetched it", path=path) from None
    except ValueError as error:
        raise BadCopy(f"{path} is damaged: {error}; {remedy}", path=path) from None
