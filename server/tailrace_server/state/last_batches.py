"""The last batch of each sink in one partition: what was published is not published again. Pure.

    the sink's last batch here    the batch that comes          decided
    ----------------------------  ----------------------------  ----------------------------------------------
    none                          any                           PUBLISH
    of the same origin, below it  any                           PUBLISH
    of the same origin            the same                      SKIP: it is here, and stands as it was then
    of the same origin            the same, in part here        CONTINUE: the parts that are not here are published
    of the same origin            the same, with other rows     CHANGED: these rows would be lost
    of the same origin            an earlier one                BEHIND: it may have other rows than the one of then
    of another origin, below it   any                           PUBLISH: the sink goes on under another origin
    of another origin             the same, or an earlier one   BEHIND: these numbers were given by another one

The origin is who numbers the batches, such as a query with its checkpoint. A new checkpoint begins at 0 again; under
the old sink's id all its batches would be taken for old ones and be dropped without a word, were it not for the origin.
A checkpoint that was restored from an older copy keeps its origin, and numbers new rows anew. A query repeats its last
batch only, so an earlier one is refused, and so is the last one with other rows: the digest of all rows of a batch
tells. If one of the two digests is not known, as of an older client, the rows are taken for the same.

A batch that is too large for one record comes to the partition in parts (publishing/cutting.py). Each part says up to
which key hash the batch is here then. All these marks stay with the batch: a rollback between two parts leaves those of
the earlier ones.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tailrace.model.failover import SEQ_MAX
from tailrace.model.hashing import HASH_MAX
from tailrace.wire.stage_messages import digest_to_json

# Programs that publish exactly once into one partition: the one that was not heard of for longest is forgotten first.
SINKS_MAX = 1_000
# A sink of this name publishes once and never comes back, but for a retry: few of them are remembered.
JOB_PREFIX = "job:"
JOBS_MAX = 100
NAME_CHARS_MAX = 200
BATCH_MAX = 2**63 - 1
# Of one batch in one partition: more than a hundred times what the bytes of all stages of a node make.
PARTS_MAX = 32_768
# What earlier versions have written: number, origin and seq.
_FIELDS_MIN = 3

assert JOBS_MAX < SINKS_MAX


class PartMark(NamedTuple):
    """A part of a batch: its last seq, and the key hash up to which the partition has the batch with it."""

    seq: int
    through: int


class LastBatch(NamedTuple):
    """A batch, by whom it was numbered, and the last seq that it has in the partition.

    ``digest`` is that of all its rows, those of other partitions included; None: not known. ``parts`` are those that
    are here, in their order; none: the batch came whole.
    """

    batch: int
    origin: str
    seq: int
    digest: int | None = None
    parts: tuple[PartMark, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether the partition has all of the batch."""
        return not self.parts or self.parts[-1].through == HASH_MAX

    def as_of(self, seq: int) -> LastBatch | None:
        """Returns what of it a partition has that ends at ``seq``; None for nothing."""
        if self.seq <= seq:
            return self
        parts = tuple(part for part in self.parts if part.seq <= seq)
        return self._replace(seq=parts[-1].seq, parts=parts) if parts else None


class Verdict(enum.Enum):
    PUBLISH = "publish"
    SKIP = "skip"
    CONTINUE = "continue"
    CHANGED = "changed"
    BEHIND = "behind"


def decide(last: LastBatch | None, batch: int, origin: str, digest: int | None) -> Verdict:
    """What to do with ``batch`` of ``origin`` where ``last`` is what the partition has; the table above."""
    if last is None or last.batch < batch:
        return Verdict.PUBLISH
    if last.batch != batch or last.origin != origin:
        return Verdict.BEHIND
    is_changed = None not in (digest, last.digest) and digest != last.digest
    if is_changed:
        return Verdict.CHANGED
    return Verdict.SKIP if last.is_complete else Verdict.CONTINUE


class LastBatches:
    """Of one partition, by the sinks' ids, the one that published last at the end.

    Of what a flush has not covered yet every batch is kept, so that ``as_of`` can tell what was the last one then.
    """

    def __init__(self) -> None:
        self._entries: dict[str, list[LastBatch]] = {}  # oldest first, and their seqs rise

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, sink: str) -> LastBatch | None:
        """The last batch of ``sink``; None where it has none."""
        entries = self._entries.get(sink)
        return entries[-1] if entries else None

    def _forget_oldest(self, names: list[str], most: int) -> None:
        for name in names[: max(len(names) - most, 0)]:
            del self._entries[name]

    def as_of(self, seq: int) -> dict[str, LastBatch]:
        """The last batches of a partition that ends at ``seq``."""
        found = {}
        for sink, entries in self._entries.items():
            last = next(filter(None, (entry.as_of(seq) for entry in reversed(entries))), None)
            if last is not None:
                found[sink] = last
        return found

    def flushed(self, seq: int) -> None:
        """What was the last batch below ``seq`` will not be asked for any more."""
        for sink, entries in self._entries.items():
            if len(entries) > 1 and entries[1].seq <= seq:
                newest = max(index for index, entry in enumerate(entries) if entry.seq <= seq)
                self._entries[sink] = entries[newest:]

    def forget_above(self, seq: int) -> None:
        """The partition was rolled back to ``seq``: batches above it are not there any more."""
        kept = {sink: _through(entries, seq) for sink, entries in self._entries.items()}
        self._entries = {sink: entries for sink, entries in kept.items() if entries}

    def tell(self, table: Mapping[str, LastBatch]) -> None:
        """Takes over the last batch of each sink in ``table``, from a publish, the leader, or a manifest.

        The sinks that were heard of longest ago are forgotten, down to the bounds: jobs down to theirs first, so that
        no number of jobs pushes out a sink that comes back.
        """
        for sink, last in table.items():
            entries = self._entries[sink] = self._entries.pop(sink, [])
            while entries and entries[-1].seq >= last.seq:  # mostly none: what is not flushed may be thousands
                entries.pop()
            entries.append(last)
        if len(self._entries) > JOBS_MAX:
            self._forget_oldest([name for name in self._entries if name.startswith(JOB_PREFIX)], JOBS_MAX)
            self._forget_oldest(list(self._entries), SINKS_MAX)


def _through(entries: list[LastBatch], seq: int) -> list[LastBatch]:
    """Returns the entries of a sink in a partition that ends at ``seq``."""
    count = sum(entry.seq <= seq for entry in entries)
    cut = entries[count].as_of(seq) if count < len(entries) else None
    is_news = cut is not None and (not count or entries[count - 1].seq < cut.seq)
    return [*entries[:count], cut] if cut is not None and is_news else entries[:count]


def to_json(table: Mapping[str, LastBatch]) -> dict[str, Any]:
    """``{sink: [batch, origin, seq, digest, [[seq, through], ...]]}``, in this order.

    No parts are left out, and then a digest that is not known.
    """
    return {sink: _write_last(last) for sink, last in table.items()}


def from_json(value: Any) -> dict[str, LastBatch]:
    """The reverse of ``to_json``. ValueError where it is not what it should be."""
    if not isinstance(value, dict) or len(value) > SINKS_MAX:
        raise ValueError(f"an object of at most {SINKS_MAX} sinks is needed, not {value!r:.60}")
    return {check_name(sink, "sink"): _read_last(last) for sink, last in value.items()}


def check_name(name: Any, what: str, *, least: int = 1) -> str:
    """``name``, where it can be the id of a sink or of an origin. ValueError."""
    if not isinstance(name, str) or not least <= len(name) <= NAME_CHARS_MAX or not name.isprintable():
        raise ValueError(f"{what}: {least} to {NAME_CHARS_MAX} printable characters are needed, not {name!r:.60}")
    return name


def _write_last(last: LastBatch) -> list[Any]:
    told: list[Any] = [last.batch, last.origin, last.seq]
    if last.digest is not None or last.parts:
        told.append(None if last.digest is None else digest_to_json(last.digest))
    return [*told, [list(part) for part in last.parts]] if last.parts else told


def _read_last(value: Any) -> LastBatch:
    if not isinstance(value, list) or not _FIELDS_MIN <= len(value) <= len(LastBatch._fields):
        raise ValueError(f"a last batch is its number, origin, seq, digest and parts, not {value!r:.60}")
    batch, origin, seq, *more = value
    for number, most in ((batch, BATCH_MAX), (seq, SEQ_MAX)):
        _check_number(number, most)
    if more == [None]:
        raise ValueError("a digest is needed if no parts follow it")
    return LastBatch(
        batch,
        check_name(origin, "origin", least=0),
        seq,
        None if not more or more[0] is None else _read_digest(more[0]),
        _read_parts(more[1], seq) if len(more) > 1 else (),
    )


def _check_number(number: Any, most: int) -> None:
    if type(number) is not int or not 0 <= number <= most:
        raise ValueError(f"a number from 0 to {most} is needed, not {number!r:.60}")


def _read_parts(value: Any, seq: int) -> tuple[PartMark, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= PARTS_MAX:
        raise ValueError(f"1 to {PARTS_MAX} parts of a batch are needed, not {value!r:.60}")
    for part in value:
        if not isinstance(part, list) or len(part) != len(PartMark._fields):
            raise ValueError(f"a part is its seq and a key hash, not {part!r:.60}")
        _check_number(part[0], SEQ_MAX)
        _check_number(part[1], HASH_MAX)
    parts = tuple(PartMark(*part) for part in value)
    for before, after in itertools.pairwise(parts):
        if before.seq > after.seq or before.through >= after.through:
            raise ValueError(f"part {after} of a batch comes behind {before}")
    if parts[-1].seq != seq:
        raise ValueError(f"the last part of a batch ends at seq {parts[-1].seq}, and the batch at {seq}")
    return parts


def _read_digest(value: Any) -> int:
    try:
        digest = int(value, 16)
        if digest_to_json(digest) == value:
            return digest
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"a digest is 16 hexadecimal digits, not {value!r:.60}")


def first_free(lasts: Iterable[LastBatch | None]) -> int:
    """The first number that a new origin may give, where these are a sink's last batches in all partitions."""
    return max((last.batch + 1 for last in lasts if last is not None), default=0)
