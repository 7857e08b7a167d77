"""Manifests: one of each kind, and any at all."""

from __future__ import annotations

from hypothesis import strategies as st

from tailrace.model import FeedInfo
from tailrace.model.failover import FailoverLog
from tailrace_server.manifest import FeedFile, Manifest, SegmentEntry
from tailrace_server.manifest.producers import NO_PRODUCERS
from tailrace_server.segment import NO_BASE
from tailrace_server.state.last_batches import LastBatch, PartMark

FEED = bytes(range(0xF0, 0x100))
BRANCH = bytes(range(0xB0, 0xC0))
PLACEMENT = b"P" * 16
TIME = 1_700_000_000_000_000
LOG = FailoverLog([(BRANCH, 1, 0)])
NAMES = st.text(min_size=1, max_size=5).filter(str.isprintable)
NUMBERS = st.integers(0, 2**63 - 1)
DIGESTS = st.none() | st.integers(0, 2**64 - 1)


def with_parts(last):
    """It as it came whole, and in one or two parts."""
    some = [(), (PartMark(last.seq, 5),), (PartMark(0, 0), PartMark(last.seq, 2**64 - 1))]
    return st.sampled_from(some).map(lambda parts: last._replace(parts=parts))


def id_of(number):
    return b"S%015d" % number


def entry(number, after_seq, last_seq, base_id=NO_BASE, **changes):
    """A segment whose rows are all there, at the times of their seqs."""
    made = SegmentEntry(
        id=id_of(number),
        base_id=base_id,
        included_ids=(),
        is_major=False,
        deduplicated=False,
        after_seq=after_seq,
        last_seq=last_seq,
        branch=BRANCH,
        nbytes=1_000,
        rows=last_seq - after_seq,
        tombstones=0,
        oldest_timestamp=TIME + after_seq,
        newest_timestamp=TIME + last_seq,
        placements=(PLACEMENT,),
    )
    return made._replace(**changes)


def chain(*ends):
    """Segments that end at these seqs, each based on the one before it."""
    after_seq, base_id, entries = 0, NO_BASE, []
    for number, last_seq in enumerate(ends, 1):
        entries.append(entry(number, after_seq, last_seq, base_id))
        after_seq, base_id = last_seq, id_of(number)
    return tuple(entries)


def manifest_of(segments=(), **changes):
    flushed_seq = segments[-1].last_seq if segments else 0
    made = Manifest(
        feed_id=FEED,
        partition=3,
        hash_first=0x4000000000000000,
        hash_last=0x7FFFFFFFFFFFFFFF,
        state="leader",
        segments=tuple(segments),
        flushed_seq=flushed_seq,
        purge_seq=0,
        trim_seq=segments[0].after_seq if segments else 0,
        log=LOG,
        placement_id=PLACEMENT,
        last_timestamp=TIME + flushed_seq,
        producers=NO_PRODUCERS,
        sinks={},
    )
    return made._replace(**changes)


def feed_file(**changes):
    info = FeedInfo("orders", FEED, 16, "hash", "compact", None, None, 259_200, "stream")
    return FeedFile(info._replace(**changes), BRANCH)


@st.composite
def manifests(draw):
    """Any chain that flushes, foldings and trims could have made."""
    lengths = draw(st.lists(st.integers(1, 1_000), max_size=6))
    ends = [sum(lengths[: index + 1]) for index in range(len(lengths))]
    segments = list(chain(*ends))
    for index in range(len(segments) - 1, -1, -1):
        if draw(st.booleans()) and draw(st.booleans()):
            older = segments[index]
            segments[index] = older._replace(
                id=id_of(1_000 + index),
                included_ids=(id_of(2_000 + index), older.id),
                is_major=index == 0,
                deduplicated=draw(st.booleans()),
                rows=draw(st.integers(0, older.rows)),
            )
    segments = segments[draw(st.integers(0, len(segments))) :]
    flushed_seq = ends[-1] if ends else 0
    begin = segments[0].after_seq if segments else flushed_seq
    return manifest_of(
        segments,
        flushed_seq=flushed_seq,
        partition=draw(st.integers(0, 2**31 - 1)),
        hash_first=draw(st.integers(0, 2**63)),
        hash_last=draw(st.integers(2**63, 2**64 - 1)),
        purge_seq=draw(st.integers(0, flushed_seq)),
        trim_seq=draw(st.integers(begin, flushed_seq)),
        last_timestamp=TIME + flushed_seq + draw(st.integers(0, 10)),
        sinks=draw(
            st.dictionaries(
                NAMES,
                st.builds(LastBatch, NUMBERS, NAMES, st.integers(0, flushed_seq), DIGESTS).flatmap(with_parts),
                max_size=3,
            )
        ),
    )
