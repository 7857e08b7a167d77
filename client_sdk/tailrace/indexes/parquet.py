"""An index in a directory of Parquet files, which Spark, DuckDB and Polars read while it is followed.

A batch becomes a file; files of one size become a larger one (``parquet_files``). A row says in which batch it came: of
each key the one of the highest batch counts. A list of the files, which also has the checkpoint, is replaced by a
rename, and that is the commit (``parquet_state``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace._version import __version__
from tailrace.errors import BadPosition
from tailrace.indexes.applied import AppliedMutations, are_above, raised
from tailrace.indexes.by_feed import PATTERN, ByFeed, require_feed
from tailrace.indexes.checkpoint import Checkpoint, require_prefix
from tailrace.indexes.columns import NO_SERIALIZER, name_of
from tailrace.indexes.parquet_files import ParquetFiles
from tailrace.indexes.parquet_state import (
    FOLDER,
    FORMAT_VERSION,
    RING_FILES_MAX,
    STATE,
    Part,
    State,
    Undone,
    change_rings,
    encode_rings,
    read_rings,
    sync,
    write_durable,
)
from tailrace.indexes.typed_columns import FIXED_COLUMNS, TypedColumns
from tailrace.model.position import Positions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.consuming.ring import Ring, RingChange
    from tailrace.indexes.protocol import AppliedMutation
    from tailrace.serializers import Serializer

# This number of files of one level become a file of the next one. So each row is written again once for each level.
MERGED_PARTS = 8
# A file that others replace stays for so long, for readers that have listed the directory before.
KEEP_REPLACED_S = 60.0

_OWN_NAME = re.compile(r"part-\d+-\d+\.parquet")


class ParquetIndex:
    """The rows of a feed in a directory of Parquet files, which other programs read at any time.

    A file has the columns ``key``, ``value``, ``deleted``, ``partition``, ``seq``, ``timestamp`` (UTC), ``batch``, and
    those of ``columns``. Of each key the row of the highest ``batch`` counts, unless it is ``deleted``. After `compact`
    there is one row for each key, and no deletion.

    A batch is one file, which is on disk before its positions are. Files are merged as they become many. One follower
    may use the directory: if a second one opens it, the next call of the first one raises RuntimeError. A call that
    raises has stored nothing.

    Args:
        path: The directory. It is made if its parent exists. With ``{feed}`` in its last name, such as
            ``"lake/feed={feed}"``, the index may be followed by several feeds: each has its own directory.
        columns: The JSON path of each further column, such as ``{"city": "$.address.city"}``, or the path and one of
            the types "text", "integer", "real", "boolean" and "json" (text): ``{"age": ("$.age", "integer")}``. A
            value of another type is null.
        keep_replaced_s: The seconds for which files stay that others replace, for readers that know their names.
        serializer: Reads the values for ``columns`` (``tailrace.serializers``). A value that it cannot read is a
            bad row. None: JSON, and NULL for other values.

    Raises:
        ValueError: A name, a JSON path or a type is not valid.
        ImportError: pyarrow is missing; ``pip install 'tailrace[arrow]'`` installs it.
    """

    takes_arrow = True  # the follower gives it ArrowMutations

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Mapping[str, str | tuple[str, str]] | None = None,
        keep_replaced_s: float = KEEP_REPLACED_S,
        serializer: Serializer | None = None,
    ) -> None:
        """Checks the arguments. Nothing is opened yet."""
        self.path = Path(path)
        self._by_feed: ByFeed[ParquetIndex] | None = None
        if PATTERN in self.path.name:
            self._by_feed = ByFeed(
                lambda feed: ParquetIndex(
                    self.path.with_name(self.path.name.replace(PATTERN, feed)),
                    columns=columns,
                    keep_replaced_s=keep_replaced_s,
                    serializer=serializer,
                )
            )
        typed = TypedColumns(columns or {}, (*FIXED_COLUMNS, "deleted", "batch"), serializer)
        try:
            self._files = ParquetFiles(typed)
        except ImportError as error:
            raise ImportError(f"ParquetIndex needs pyarrow ({error}): pip install 'tailrace[arrow]'") from error
        self._settings = {"format": str(FORMAT_VERSION), "columns": typed.describe(), "serializer": name_of(serializer)}
        self._keep_replaced_s = keep_replaced_s
        self._own = self.path / FOLDER
        self._state: State | None = None
        self._stored: Positions | None = None
        self._rings: dict[int, Ring] = {}
        self._written: tuple[int, int] | None = None  # which file the list is, as this index has written it
        self._lock = threading.Lock()  # `compact` may come from another thread

    def of_feed(self, feed: str) -> ParquetIndex:
        """Returns the index of one feed. A follower asks for it.

        Args:
            feed: The name of the feed.

        Returns:
            The index with the directory of this feed, the same object each time, if the path has ``{feed}``. Otherwise
            the index itself.
        """
        return self if self._by_feed is None else self._by_feed.of(feed)

    def open(self) -> Checkpoint | None:
        """Opens the directory, or makes it, and returns its checkpoint.

        Returns:
            The stored checkpoint, or None if the directory holds nothing yet.

        Raises:
            ValueError: The directory has other columns, or Parquet files of another program.
            FileNotFoundError: The parent of the directory does not exist.
            BadPosition: The list of the files is damaged, or a file is missing.
        """
        require_feed(self.path, self._by_feed)
        with self._lock:
            self._close()
            state = self._read_state()
            try:
                self._rings = read_rings(self._own, state.rings)
                self._stored = state.stored()
            except (ValueError, OSError, BadPosition) as error:
                raise self._damaged(error) from None
            self._written = None
            self._commit(dataclasses.replace(state, openings=state.openings + 1))
            self._tidy()
            rings = {partition: ring.whole() for partition, ring in self._rings.items()}
            return Checkpoint(self._stored, rings) if self._stored else None

    def keep_prefix(self, key_prefix: bytes) -> None:
        """Notes the prefix of all keys. The follower calls it after `open`.

        Args:
            key_prefix: The prefix that is followed.

        Raises:
            ValueError: The index was filled with another prefix.
            RuntimeError: Another follower has opened the directory.
        """
        with self._lock:
            state = self._opened()
            if self._stored:
                require_prefix(self.path, bytes.fromhex(state.key_prefix), key_prefix)
            if state.key_prefix != key_prefix.hex():
                self._commit(dataclasses.replace(state, key_prefix=key_prefix.hex()))

    def apply(self, mutations: Sequence[AppliedMutation], checkpoint: Checkpoint) -> None:
        """Stores mutations and their checkpoint, as `Index.apply`.

        Args:
            mutations: The mutations.
            checkpoint: The new checkpoint.

        Raises:
            BadPosition: The checkpoint belongs to another feed than the directory.
            RuntimeError: Another follower has opened the directory.
            OSError: The disk is full, or fails.
        """
        newest = AppliedMutations.of(mutations)
        positions = checkpoint.positions
        with self._lock:
            state = self._opened()
            if self._stored:
                positions.require_feed(self._stored.cluster_id, self._stored.feed_id)
            rows = self._without_older(state, newest)
            number = state.batch + 1
            parts = state.parts
            if rows:
                part = Part(number, number, len(rows))
                self._write_part(part, self._files.table(rows, number))
                parts = (*parts, part)
            high_seqs = raised(state.high_seqs, rows)
            rings = state.rings
            if checkpoint.rings:
                self._write_rings(number, checkpoint.rings)
                rings = (*rings, number)
            self._commit(
                dataclasses.replace(
                    state,
                    batch=number,
                    positions=str(positions) if positions else "",
                    parts=parts,
                    high_seqs=high_seqs,
                    rings=rings,
                )
            )
            self._stored = positions
            change_rings(self._rings, checkpoint.rings.items())
            self._merge_levels()
            self._tidy()

    def rollback(self, partition: int, seq: int) -> None:
        """Prepares for the values of another history, as `Index.rollback`. No old values are kept.

        Args:
            partition: The partition.
            seq: The last seq that both histories share.

        Returns:
            Always None. The next mutations replace the rows above ``seq``.

        Raises:
            RuntimeError: Another follower has opened the directory.
        """
        with self._lock:
            state = self._opened()
            others = tuple(one for one in state.undone if one.partition != partition or one.seq < seq)
            high_seqs = {**state.high_seqs, partition: min(state.high_seqs.get(partition, 0), seq)}
            undone = (*others, Undone(partition, state.batch, seq))
            self._commit(dataclasses.replace(state, undone=undone, high_seqs=high_seqs))

    def clear(self, partition: int) -> None:
        """Deletes everything of a partition, as `Index.clear`. All files are written anew.

        Args:
            partition: The partition.

        Raises:
            RuntimeError: Another follower has opened the directory.
        """
        with self._lock:
            state = self._opened()
            stored = None if self._stored is None else self._stored.without(partition)
            self._rings.pop(partition, None)
            self._write_whole_rings(state.batch + 1)
            state = dataclasses.replace(
                state,
                batch=state.batch + 1,
                positions=str(stored) if stored else "",
                high_seqs={p: seq for p, seq in state.high_seqs.items() if p != partition},
                rings=(state.batch + 1,),
            )
            self._merge(state, 0, without=partition)
            self._stored = stored
            self._tidy(now=float("inf"))  # a reader must not see the rows again

    def compact(self) -> None:
        """Merges all files into one, with one row for each key and no deletion.

        Any thread may call it while the index is open. The files of before are removed at once: a reader that has
        listed them and not opened them yet gets an error.

        Raises:
            RuntimeError: The index is not open, or another follower has opened it.
        """
        with self._lock:
            state = self._opened()
            if len(state.parts) > 1 or state.undone or any(not part.level for part in state.parts):
                self._merge(state, 0)
            self._tidy(now=float("inf"))

    def read(self, columns: Sequence[str] | None = None) -> Any:
        """Reads the current row of each key. Any thread may call it while the index is open.

        Args:
            columns: The names of the columns. None: all.

        Returns:
            A ``pyarrow.Table``, by rising key.

        Raises:
            RuntimeError: The index is not open.
        """
        with self._lock:
            state = self._required()
            return self._files.newest([self.path / part.name for part in state.parts], columns)

    def close(self) -> None:
        """Closes the index. It may be called twice."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._state = self._stored = None
        self._rings = {}

    # Which rows are newer than those that are there

    def _without_older(self, state: State, rows: AppliedMutations) -> AppliedMutations:
        """Leaves rows away that are older than the one that is held of their key.

        A row above all seqs of its partition is newer, so that mostly no file is read.
        """
        high = state.high_seqs
        if are_above(high, rows):
            return rows
        keys = [
            key
            for key, partition, seq in zip(rows.keys, rows.partitions, rows.seqs, strict=True)
            if seq <= high.get(partition, 0)
        ]
        held = self._files.held([self.path / part.name for part in state.parts], keys, state.undone)
        columns = zip(rows.keys, rows.partitions, rows.seqs, strict=True)
        is_newer = [
            (found := held.get(key)) is None or found.partition != partition or found.seq <= seq
            for key, partition, seq in columns
        ]
        return rows if all(is_newer) else rows.where(is_newer)

    # Durable steps, in their order

    def _write_part(self, part: Part, table: Any) -> None:
        """Writes a file of rows where readers do not look yet."""
        path = self._own / part.name
        self._files.write(path, [table])
        sync(path)

    def _write_rings(self, number: int, changes: Mapping[int, RingChange]) -> None:
        write_durable(self._own / f"ring-{number}", encode_rings(changes))

    def _write_whole_rings(self, number: int) -> None:
        self._write_rings(number, {partition: ring.whole() for partition, ring in self._rings.items()})

    def _commit(self, state: State) -> None:
        """Replaces the list. What it names is from then on the content of the index.

        A power cut may bring the list of before back, whose files are there until `_tidy` has the new one on disk.
        """
        path, new = self._own / STATE, self._own / f"{STATE}.new"
        if self._written is not None and _identity(path) != self._written:
            raise RuntimeError(f"another follower has opened the index {self.path}; give each one an index of its own")
        sync(self._own)
        write_durable(new, state.to_json())
        written = _identity(new)
        new.rename(path)
        self._written = written
        self._state = state
        self._place(state)

    def _place(self, state: State) -> None:
        """Moves files that the list names to where readers look."""
        for part in state.parts:
            if (self._own / part.name).exists():
                (self._own / part.name).rename(self.path / part.name)

    def _tidy(self, now: float | None = None) -> None:
        """Removes what the list does not name, and files that were replaced a while ago. The oldest go first."""
        state = self._required()
        moment = time.time() if now is None else now
        kept = {part.name for part in state.parts} | {name for name, at in state.replaced if at > moment}
        found = [path for path in self.path.iterdir() if _OWN_NAME.fullmatch(path.name) and path.name not in kept]
        found.sort(key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)])
        needed = {STATE, *(f"ring-{number}" for number in state.rings), *(part.name for part in state.parts)}
        found += [path for path in self._own.iterdir() if path.name not in needed]
        if found:
            sync(self._own)
            sync(self.path)
        for path in found:
            self._remove(path)

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    # Merging

    def _merge_levels(self) -> None:
        """Merges the newest files of one level, as often as there are enough of them; and the files of rings."""
        while True:
            state = self._required()
            parts = state.parts
            first = len(parts)
            while first and parts[first - 1].level == parts[-1].level:
                first -= 1
            if len(parts) - first < MERGED_PARTS:
                break
            self._merge(state, first)
        if len(state.rings) > RING_FILES_MAX:
            number = state.batch + 1
            self._write_whole_rings(number)
            self._commit(dataclasses.replace(state, batch=number, rings=(number,)))

    def _merge(self, state: State, first: int, without: int | None = None) -> None:
        """Replaces the files from number ``first`` on by one, and commits ``state`` with it."""
        merged = state.parts[first:]
        number = state.batch + 1
        level = max((part.level for part in merged), default=0) + 1
        made = Part(merged[0].first if merged else number, number, 0, level)
        paths = [self.path / part.name for part in merged]
        rows = self._files.merge(paths, self._own / made.name, state.undone, drops_deletions=not first, without=without)
        sync(self._own / made.name)
        until = time.time() + self._keep_replaced_s
        self._commit(
            dataclasses.replace(
                state,
                batch=number,
                parts=(*state.parts[:first], *((dataclasses.replace(made, rows=rows),) if rows else ())),
                replaced=(*self._kept(state), *((part.name, until) for part in merged)),
                undone=state.undone if first else (),
            )
        )

    def _kept(self, state: State) -> list[tuple[str, float]]:
        """Returns the replaced files that are still there."""
        return [(name, at) for name, at in state.replaced if (self.path / name).exists()]

    # Opening

    def _read_state(self) -> State:
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"the parent of the directory {self.path} of the index does not exist")
        path = self._own / STATE
        if not path.exists():
            self._make()
            return State(self._settings)
        try:
            state = State.from_json(path.read_bytes())
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(error) from None
        self._check_settings(state.settings)
        for part in state.parts:
            if not ((self.path / part.name).exists() or (self._own / part.name).exists()):
                raise self._damaged(FileNotFoundError(f"the file {part.name} is missing"))
        return state

    def _make(self) -> None:
        self.path.mkdir(exist_ok=True)
        if any(self.path.glob("*.parquet")):
            raise ValueError(f"{self.path} has Parquet files already, and no index made them; choose another directory")
        # What a crash has left of an index that was never made.
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._own)
        self._own.mkdir()
        sync(self.path)

    def _check_settings(self, made_with: Mapping[str, str]) -> None:
        for name, wanted in self._settings.items():
            if (found := made_with.get(name, NO_SERIALIZER if name == "serializer" else None)) == wanted:
                continue
            anew = "delete the directory and let it be filled anew"
            if name == "format":
                raise ValueError(
                    f"{self.path} was made with format = {found}; tailrace {__version__} knows formats up to {wanted}: "
                    f"use the release that made it, or a later one, or {anew}"
                )
            raise ValueError(
                f"{self.path} was made with {name} = {found}, and is opened with {wanted}; open it as it was made, or "
                f"{anew}, or choose another directory"
            )

    def _damaged(self, error: Exception) -> BadPosition:
        return BadPosition(
            f"{self.path}: the checkpoint cannot be used ({error}); delete the directory, and the index is filled anew"
        )

    def _required(self) -> State:
        if self._state is None:
            raise RuntimeError(f"the index {self.path} is not open")
        return self._state

    def _opened(self) -> State:
        """Returns the state, before a change. RuntimeError if another follower has opened the index."""
        state = self._required()
        if _identity(self._own / STATE) != self._written:
            raise RuntimeError(f"another follower has opened the index {self.path}; give each one an index of its own")
        return state


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns
