"""The layout of a copy: names of files, and the bytes of FEED.json and CHECKPOINT.json. Pure: docs/formats/copy.md.

    DIR/FEED.json                  the feed, its settings, and the partitions that the copy is meant to have
    DIR/3/CHECKPOINT.json          partition 3: the seq, the failover log, and the chain of segments
    DIR/3/<segment id>.seg         a segment, byte by byte as the node has it

The writer makes FEED.json first, and a CHECKPOINT.json after all segments that it names. So an interrupted fetch leaves
partitions without a CHECKPOINT.json, or with the one of the fetch before.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any, NamedTuple

import xxhash

from tailrace.model.failover import SEQ_MAX, FailoverLog
from tailrace.model.values import FEED_ID_BYTES, FeedInfo

FEED_NAME = "FEED.json"
CHECKPOINT_NAME = "CHECKPOINT.json"
SEGMENT_SUFFIX = ".seg"
TEMPORARY_SUFFIX = ".new"  # of files that are being written

FEED_FORMAT = "tailrace copy"
CHECKPOINT_FORMAT = "tailrace copy of a partition"
VERSION = 1

# 100,000 segments take 25 MB. A longer file is no checkpoint, and is refused before it is read.
FILE_BYTES_MAX = 64 << 20
PARTITIONS_MAX = 4_096
SEGMENTS_MAX = 100_000
_NAME_CHARS_MAX = 1_024
_ID_BYTES = 16
_CHECKSUM_BYTES = 16
_RETENTIONS = ("compact", "history")


class UnknownCopyVersion(ValueError):
    """The file has a version that this program does not know."""


class SegmentCopy(NamedTuple):
    """A segment of a copied partition.

    Attributes:
        id: The id of the segment, 16 bytes.
        nbytes: The size of the file in bytes.
        checksum: The XXH3-128 checksum that the file has in its trailer, 16 bytes, the highest first.
        first_seq: The first seq of its run.
        last_seq: The last seq of its run, included.
    """

    id: bytes
    nbytes: int
    checksum: bytes
    first_seq: int
    last_seq: int

    @property
    def file_name(self) -> str:
        """The name of the file."""
        return f"{self.id.hex()}{SEGMENT_SUFFIX}"


class PartitionCopy(NamedTuple):
    """A copied partition: the state of its history at ``seq``.

    Attributes:
        partition: The partition, from 0.
        seq: The last seq that the copy has.
        purge_seq: Deletions up to this seq may be missing.
        log: The failover log: the branches of the history, newest first.
        segments: The chain of segments, oldest first. Each run begins at the end of the one before it.
    """

    partition: int
    seq: int
    purge_seq: int
    log: FailoverLog
    segments: tuple[SegmentCopy, ...]

    @property
    def first_seq(self) -> int:
        """The first seq that the copy has. Rows of a history below it were dropped by age or size."""
        return self.segments[0].first_seq if self.segments else self.seq + 1

    @property
    def nbytes(self) -> int:
        """The size of all segments in bytes."""
        return sum(segment.nbytes for segment in self.segments)


_SETTINGS = tuple(name for name in FeedInfo._fields if name not in ("level", "ttl_s"))


class FeedCopy(NamedTuple):
    """The content of FEED.json: the cluster (16 bytes), the feed, and the partitions that were asked for, rising.

    It has no level and no ttl: these are about the feed, and not about the rows in the copy.
    """

    cluster_id: bytes
    feed: FeedInfo
    fetched: tuple[int, ...]

    def encode(self) -> bytes:
        """Returns the content of the file. ValueError if ``decode`` would refuse it."""
        members = {
            "cluster_id": self.cluster_id.hex(),
            **{name: getattr(self.feed, name) for name in _SETTINGS},
            "feed_id": self.feed.feed_id.hex(),
            "fetched": list(self.fetched),
        }
        data = _seal(FEED_FORMAT, members)
        FeedCopy.decode(data)
        return data

    @classmethod
    def decode(cls, data: bytes) -> FeedCopy:
        """Parses the result of ``encode``. Raises ValueError, with the reason, for other bytes; UnknownCopyVersion."""
        members = _unseal(data, FEED_FORMAT, {"cluster_id", "fetched", *_SETTINGS})
        cluster_id = _id_of(members.pop("cluster_id"), "cluster_id", _ID_BYTES)
        members["feed_id"] = _id_of(members["feed_id"], "feed_id", FEED_ID_BYTES)
        fetched = members.pop("fetched")
        partitions = _integer(members["partitions"], "partitions", 1, PARTITIONS_MAX)
        if not isinstance(fetched, list):
            raise ValueError("fetched must be a list of partitions")
        for partition in fetched:
            _integer(partition, "a member of fetched", 0, partitions - 1)
        if any(one >= other for one, other in pairwise(fetched)):
            raise ValueError("the partitions in fetched must rise")
        _check_settings(members)
        return cls(cluster_id, FeedInfo(**members), tuple(fetched))


def encode_checkpoint(feed_id: bytes, copy: PartitionCopy) -> bytes:
    """Returns the content of the CHECKPOINT.json of ``copy``. ValueError if `decode_checkpoint` would refuse it."""
    members = {
        "feed_id": feed_id.hex(),
        "partition": copy.partition,
        "seq": copy.seq,
        "purge_seq": copy.purge_seq,
        "log": copy.log.to_json(),
        "segments": [
            {
                "id": segment.id.hex(),
                "file": segment.file_name,
                "bytes": segment.nbytes,
                "checksum": segment.checksum.hex(),
                "first_seq": segment.first_seq,
                "last_seq": segment.last_seq,
            }
            for segment in copy.segments
        ],
    }
    data = _seal(CHECKPOINT_FORMAT, members)
    decode_checkpoint(data, feed_id, copy.partition)
    return data


def decode_checkpoint(data: bytes, feed_id: bytes, partition: int) -> PartitionCopy:
    """Parses the CHECKPOINT.json of ``partition`` of a feed.

    Raises ValueError, with the reason, for other bytes and for those of another partition; UnknownCopyVersion.
    """
    names = {"feed_id", "partition", "seq", "purge_seq", "log", "segments"}
    members = _unseal(data, CHECKPOINT_FORMAT, names)
    of_feed = _id_of(members["feed_id"], "feed_id", FEED_ID_BYTES)
    if of_feed != feed_id:
        raise ValueError(f"it is of the feed with the id {of_feed.hex()}, not {feed_id.hex()}")
    found = _integer(members["partition"], "partition", 0, PARTITIONS_MAX - 1)
    if found != partition:
        raise ValueError(f"it is of partition {found}, not {partition}")
    seq = _integer(members["seq"], "seq", 0, SEQ_MAX)
    purge_seq = _integer(members["purge_seq"], "purge_seq", 0, SEQ_MAX)
    if purge_seq > seq:
        raise ValueError(f"the purge seq {purge_seq} is above the seq, {seq}")
    segments = members["segments"]
    if not isinstance(segments, list) or len(segments) > SEGMENTS_MAX:
        raise ValueError(f"segments must be a list of at most {SEGMENTS_MAX}")
    chain = tuple(_segment_of(item) for item in segments)
    _check_chain(chain, seq)
    return PartitionCopy(partition, seq, purge_seq, FailoverLog.from_json(members["log"]), chain)


def _segment_of(item: Any) -> SegmentCopy:
    """Parses a segment of a chain. ValueError."""
    names = {"id", "file", "bytes", "checksum", "first_seq", "last_seq"}
    if not isinstance(item, dict) or item.keys() != names:
        raise ValueError(f"a segment must be an object of exactly the members {', '.join(sorted(names))}")
    first_seq = _integer(item["first_seq"], "first_seq", 1, SEQ_MAX)
    segment = SegmentCopy(
        _id_of(item["id"], "id", _ID_BYTES),
        _integer(item["bytes"], "bytes", 1, SEQ_MAX),
        _id_of(item["checksum"], "checksum", _CHECKSUM_BYTES),
        first_seq,
        _integer(item["last_seq"], "last_seq", first_seq, SEQ_MAX),
    )
    if item["file"] != segment.file_name:
        raise ValueError(f"the file of segment {segment.id.hex()} is {item['file']!r:.200}, not {segment.file_name!r}")
    return segment


def _check_chain(chain: tuple[SegmentCopy, ...], seq: int) -> None:
    """Raises ValueError unless each run begins at the end of the one before it, and the last one ends at ``seq``."""
    for older, newer in pairwise(chain):
        if newer.first_seq != older.last_seq + 1:
            raise ValueError(f"a segment begins at seq {newer.first_seq}, the one before it ends at {older.last_seq}")
    if chain and chain[-1].last_seq != seq:
        raise ValueError(f"the last segment ends at seq {chain[-1].last_seq}, and the partition at {seq}")
    if len({segment.id for segment in chain}) != len(chain):
        raise ValueError("a segment is in the chain twice")


def _check_settings(members: dict[str, Any]) -> None:
    """Raises ValueError for a setting of a feed that cannot be one. Keyspaces and replication modes may be new ones."""
    for name in ("name", "keyspace", "retention", "replication"):
        text = members[name]
        if not isinstance(text, str) or not 0 < len(text) <= _NAME_CHARS_MAX:
            raise ValueError(f"{name} is {text!r:.60}, not a text of 1 to {_NAME_CHARS_MAX} characters")
    if members["retention"] not in _RETENTIONS:
        raise ValueError(f"retention is {members['retention']!r:.60}, not {' or '.join(map(repr, _RETENTIONS))}")
    for name in ("history_age_s", "history_bytes", "tombstone_age_s"):
        number = members[name]
        if number is None and name != "tombstone_age_s":
            continue
        if type(number) not in (int, float) or not 0 <= number < math.inf:
            raise ValueError(f"{name} is {number!r:.60}, not a number")


def _seal(format: str, members: dict[str, Any]) -> bytes:
    """Returns one line of JSON. Its last member, ``sum``, is the XXH3-64 of the line without it, in hexadecimal."""
    text = _text({"format": format, "version": VERSION, **members})
    return _text({"format": format, "version": VERSION, **members, "sum": f"{_sum(text):016x}"}).encode() + b"\n"


def _unseal(data: bytes, format: str, names: set[str]) -> dict[str, Any]:
    """Returns the members ``names`` of an object that ``_seal`` has made. ValueError, UnknownCopyVersion."""
    try:
        members = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from None
    if not isinstance(members, dict) or members.get("format") != format:
        raise ValueError(f"it is no {format!r}")
    version = members.get("version")
    if version != VERSION:
        raise UnknownCopyVersion(f"it has version {version!r:.20} of the layout; this Tailrace knows version {VERSION}")
    told = members.pop("sum", None)
    if told != f"{_sum(_text(members)):016x}":
        raise ValueError("its checksum is wrong")
    del members["format"], members["version"]
    if members.keys() != names:
        differing = ", ".join(sorted(members.keys() ^ names)[:5])
        raise ValueError(f"it has members that are missing or not known: {differing:.300}")
    return members


def _text(members: dict[str, Any]) -> str:
    return json.dumps(members, separators=(",", ":"))


def _sum(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())


def _integer(value: Any, name: str, least: int, greatest: int) -> int:
    if type(value) is not int or not least <= value <= greatest:
        raise ValueError(f"{name} is {value!r:.60}, not an integer from {least} to {greatest}")
    return value


def _id_of(text: Any, name: str, nbytes: int) -> bytes:
    """Returns the bytes that ``text`` gives in lower-case hexadecimal. ValueError."""
    if isinstance(text, str) and len(text) == 2 * nbytes and not set(text) - set("0123456789abcdef"):
        return bytes.fromhex(text)
    raise ValueError(f"{name} is {text!r:.60}, not {2 * nbytes} hexadecimal digits")
