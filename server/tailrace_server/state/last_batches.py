"""The last batch of each sink in one partition, so that no batch is published twice. Pure.

    the sink's last batch here    the batch that comes          decided
    ----------------------------  ----------------------------  ----------------------------------------------
    none                          any                           PUBLISH
    of the same origin, below it  any                           PUBLISH
    of the same origin            the same                      SKIP: it is here, and stays as it is
    of the same origin            the same, in part here        CONTINUE: the missing parts are published
    of the same origin            the same, with other rows     CHANGED: these rows would be lost
    of the same origin            an earlier one                BEHIND: its rows may differ from the published ones
    of another origin, below it   any                           PUBLISH: the sink goes on under another origin
    of another origin             the same, or an earlier one   BEHIND: another origin assigned these numbers

The origin names the query, with its checkpoint, that numbers the batches. A new checkpoint begins at 0 again. Without
the origin all its batches would be taken for old ones and be dropped silently. A checkpoint that was restored from an
older copy keeps its origin, and assigns old numbers to new rows. A query repeats its last batch only. So an earlier
batch is refused, and so is the last batch with other rows, which the digest of all rows of a batch tells. If one of the
two digests is not known, as for an older client, the rows count as equal.

A batch that is too large for one record comes to the partition in parts (publishing/cutting.py). The mark of each part
has the key hash up to which the partition then has the batch. All marks stay with the batch, so that a rollback between
two parts leaves the marks of the earlier parts.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tailrace.model.failover import SEQ_MAX
from tailrace.model.hashing import HASH_MAX
from tailrace.wire.stage_messages import digest_to_json

# Sinks of one partition. The sink that has not published for longest is forgotten first.
SINKS_MAX = 1_000
# A sink with this prefix publishes once, and again only as a retry: few of them are remembered.
JOB_PREFIX = "job:"
JOBS_MAX = 100
NAME_CHARS_MAX = 200
BATCH_MAX = 2**63 - 1
# Parts of one batch in one partition: more than a hundred times as many as all stages of a node can make.
PARTS_MAX = 32_768
# Earlier versions wrote three fields: number, origin and seq.
_FIELDS_MIN = 3

assert JOBS_MAX < SINKS_MAX


class PartMark(NamedTuple):
    """A part of a batch: its last seq, and the key hash up to which the partition has the batch with it."""

    seq: int
    through: int


class LastBatch(NamedTuple):
    """A batch, the origin of its number, and its last seq in the partition.

    ``digest`` is that of all its rows, in all partitions; None if it is not known. ``parts`` are the parts that the
    partition has, in order; empty for a batch that came whole.
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
        """Returns the batch as a partition that ends at ``seq`` has it; None if it has nothing of it."""
        if self.seq <= seq:
            return self
        parts = tuple(part for part in self.parts if part.seq <= seq)
        return self._replace(seq=parts[-1].seq, parts=parts) if parts else None


class PublishedAt(NamedTuple):
    """The number of a sink's last batch, and its time in microseconds since 1970; 0 if it is not known."""

    batch: int
    time_us: int


class _Entry(NamedTuple):
    last: LastBatch
    time_us: int


class BatchVerdict(enum.Enum):
    PUBLISH = "publish"
    SKIP = "skip"
    CONTINUE = "continue"
    CHANGED = "changed"
    BEHIND = "behind"


def decide(last: LastBatch | None, batch: int, origin: str, digest: int | None) -> BatchVerdict:
    """Decides about ``batch`` of ``origin`` by the table above; ``last`` is the sink's last batch here."""
    if last is None or last.batch < batch:
        return BatchVerdict.PUBLISH
    if last.batch != batch or last.origin != origin:
        return BatchVerdict.BEHIND
    is_changed = None not in (digest, last.digest) and digest != last.digest
    if is_changed:
        return BatchVerdict.CHANGED
    return BatchVerdict.SKIP if last.is_complete else BatchVerdict.CONTINUE


class LastBatches:
    """The last batches of one partition by sink, the sink that published last at the end.

    All batches that no flush covers yet are kept, so that ``as_of`` can tell the last one at an earlier seq. Their
    times are kept in memory only: no file and no message has them.
    """

    def __init__(self) -> None:
        self._entries: dict[str, list[_Entry]] = {}  # oldest first, and their seqs rise

    def __len__(self) -> int:
        return len(self._entries)

    def published(self) -> Iterator[tuple[str, PublishedAt]]:
        """Yields each sink with the number and the time of its last batch."""
        return (
            (sink, PublishedAt(entries[-1].last.batch, entries[-1].time_us)) for sink, entries in self._entries.items()
        )

    def find(self, sink: str) -> LastBatch | None:
        """Returns the last batch of ``sink``; None if it has not published here."""
        entries = self._entries.get(sink)
        return entries[-1].last if entries else None

    def count_beginning(self, prefix: bytes) -> int:
        """Returns how many sinks have names that begin with ``prefix``, jobs not counted."""
        return sum(sink.encode().startswith(prefix) for sink in self._entries if not sink.startswith(JOB_PREFIX))

    def _forget_oldest(self, names: list[str], most: int) -> None:
        for name in names[: max(len(names) - most, 0)]:
            del self._entries[name]

    def as_of(self, seq: int) -> dict[str, LastBatch]:
        """Returns the last batches of a partition that ends at ``seq``."""
        found = {}
        for sink, entries in self._entries.items():
            last = next(filter(None, (entry.last.as_of(seq) for entry in reversed(entries))), None)
            if last is not None:
                found[sink] = last
        return found

    def flushed(self, seq: int) -> None:
        """Drops earlier batches: ``as_of`` will not be called for a seq below ``seq`` any more."""
        for sink, entries in self._entries.items():
            if len(entries) > 1 and entries[1].last.seq <= seq:
                newest = max(index for index, entry in enumerate(entries) if entry.last.seq <= seq)
                self._entries[sink] = entries[newest:]

    def forget_above(self, seq: int) -> None:
        """Drops batches above ``seq``, to which the partition was rolled back."""
        kept = {sink: _through(entries, seq) for sink, entries in self._entries.items()}
        self._entries = {sink: entries for sink, entries in kept.items() if entries}

    def tell(self, table: Mapping[str, LastBatch], time_of: Callable[[int], int] = lambda _: 0) -> None:
        """Takes over the last batch of each sink in ``table``, from a publish, the leader, or a manifest.

        ``time_of`` returns the time of a batch by its last seq, as `PublishedAt` has it. A batch that was told before
        keeps its time.

        Sinks that have not published for longest are forgotten, down to the bounds: jobs first, down to their own
        bound, so that no number of jobs pushes out a sink that returns.
        """
        for sink, last in table.items():
            entries = self._entries[sink] = self._entries.pop(sink, [])
            known = None
            while entries and entries[-1].last.seq >= last.seq:  # usually no entry: thousands may not be flushed yet
                known = entries.pop()
            is_same = known is not None and known.last.seq == last.seq
            entries.append(_Entry(last, known.time_us if known is not None and is_same else time_of(last.seq)))
        if len(self._entries) > JOBS_MAX:
            self._forget_oldest([name for name in self._entries if name.startswith(JOB_PREFIX)], JOBS_MAX)
            self._forget_oldest(list(self._entries), SINKS_MAX)


def _through(entries: list[_Entry], seq: int) -> list[_Entry]:
    """Returns the entries of a sink in a partition that ends at ``seq``."""
    count = sum(entry.last.seq <= seq for entry in entries)
    cut = entries[count].last.as_of(seq) if count < len(entries) else None
    if cut is None or (count and entries[count - 1].last.seq >= cut.seq):
        return entries[:count]
    return [*entries[:count], _Entry(cut, entries[count].time_us)]


def newer(published: PublishedAt, known: PublishedAt | None) -> PublishedAt:
    """Returns the one with the higher number, or the later one of two with the same; for sums over partitions."""
    return published if known is None else max(published, known)


def to_json(table: Mapping[str, LastBatch]) -> dict[str, Any]:
    """Returns ``{sink: [batch, origin, seq, digest, [[seq, through], ...]]}``, in this order.

    Empty parts are left out, and then a digest that is not known.
    """
    return {sink: _write_last(last) for sink, last in table.items()}


def from_json(value: Any) -> dict[str, LastBatch]:
    """Returns the table of ``to_json``. ValueError if ``value`` has another form."""
    if not isinstance(value, dict) or len(value) > SINKS_MAX:
        raise ValueError(f"an object of at most {SINKS_MAX} sinks is needed, not {value!r:.60}")
    return {check_name(sink, "sink"): _read_last(last) for sink, last in value.items()}


def check_name(name: Any, what: str, *, least: int = 1) -> str:
    """Returns ``name`` if it can be the id of a sink or of an origin; else raises ValueError."""
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
    """Returns the first number for a new origin; ``lasts`` are the sink's last batches of all partitions."""
    return max((last.batch + 1 for last in lasts if last is not None), default=0)
