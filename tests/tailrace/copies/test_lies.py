"""A node that lies about a checkpoint, and a client of each kind: a named error, and the copy of before stays."""

import dataclasses
import os

import pytest
import trio

from tailrace import Put, SegmentReader, blocking
from tailrace.errors import BadCopy, BadSegment, ProtocolError
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace.wire.segment_messages import PartitionCheckpoint

PATH_AS_ID = "../../../../etc/passwd"


def with_last(told, **changes):
    """Returns the body with changes of the last segment."""
    return told | {"segments": [*told["segments"][:-1], told["segments"][-1] | changes]}


def too_many(told):
    """Returns a chain of 10,001 segments of one row each."""
    first = told["segments"][0]
    rows = range(1, 10_002)
    return told | {
        "seq": rows[-1],
        "segments": [first | {"id": f"{row:032x}", "first_seq": row, "last_seq": row} for row in rows],
    }


def another_history(told):
    log = FailoverLog([FailoverEntry(b"x" * 16, told["term"], 0)])
    return told | {"log": log.to_json()}


LIES = {
    "a size that no disk has": (lambda told: with_last(told, bytes=2**62), OSError, "bytes are to be fetched"),
    "a size of more than 63 bits": (lambda told: with_last(told, bytes=2**64), ProtocolError, "contradicts itself"),
    "a negative size": (lambda told: with_last(told, bytes=-1), ProtocolError, "contradicts itself"),
    "a size that is a text": (lambda told: with_last(told, bytes="1"), ProtocolError, "field 'bytes'"),
    "a file that is shorter": (
        lambda told: with_last(told, bytes=told["segments"][-1]["bytes"] + 1),
        BadSegment,
        "bytes from",
    ),
    "a file that is longer": (
        lambda told: with_last(told, bytes=told["segments"][-1]["bytes"] - 1),
        BadSegment,
        "is not as the node told",
    ),
    "another checksum": (lambda told: with_last(told, checksum="00" * 16), BadSegment, "its checksum is"),
    "an id that is a path": (lambda told: with_last(told, id=PATH_AS_ID), ProtocolError, "field 'id'"),
    "an id that the node does not have": (lambda told: with_last(told, id="7a" * 16), BadSegment, "has no segment"),
    "a segment twice": (
        lambda told: with_last(told | {"segments": [*told["segments"], told["segments"][-1]]}, first_seq=1),
        ProtocolError,
        "begins at",
    ),
    "a gap": (
        lambda told: with_last(told, first_seq=told["segments"][-1]["first_seq"] + 1),
        ProtocolError,
        "begins at|are missing",
    ),
    "an end above the segments": (lambda told: told | {"seq": told["seq"] + 1}, ProtocolError, "the segments end at"),
    "too many segments": (too_many, ProtocolError, "at most 10000"),
    "another partition": (lambda told: told | {"partition": 1}, ProtocolError, "a checkpoint of partition 1"),
    "another feed": (lambda told: told | {"feed_id": "00" * 16}, ProtocolError, "of the feed 0000"),
    "another history": (another_history, BadCopy, "another history"),
}


def state_of(path):
    """Returns the newest value of each key in a copy."""
    reader, found = SegmentReader(path), {}
    reader.verify()
    for partition in reader.partitions:
        for event in reader.mutations(partition):
            found.update(zip(event.keys(), event.values(), strict=True))
    return found


@pytest.mark.parametrize("shell", ["trio", "blocking"])
@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_installs_nothing_and_loses_nothing(running, client, tmp_path, monkeypatch, lie, shell):
    change, error, match = LIES[lie]
    checkpoints = running.node.storage.checkpoints
    checkpoints._limits = dataclasses.replace(checkpoints._limits, checkpoint_flush_s=0.0)
    feed = await client.create_feed("one", partitions=1)
    path = tmp_path / "copy"

    async def fetch():
        if shell == "trio":
            return await feed.fetch(path)

        def fetch_blocking():
            with blocking.connect(running.url) as client:
                return client.feed("one").fetch(path)

        return await trio.to_thread.run_sync(fetch_blocking)

    await feed.write([Put(b"k%d" % number, b"old") for number in range(20)])
    await fetch()
    before, names = state_of(path), sorted(os.listdir(path / "0"))
    await feed.write([Put(b"k%d" % number, b"new") for number in range(10)])
    to_json = PartitionCheckpoint.to_json
    with monkeypatch.context() as patched:
        patched.setattr(PartitionCheckpoint, "to_json", lambda checkpoint: change(to_json(checkpoint)))
        with pytest.raises(error, match=match):
            await fetch()
    assert state_of(path) == before
    assert [name for name in sorted(os.listdir(path / "0")) if not name.endswith(".new")] == names
    assert sorted(os.listdir(tmp_path)) == ["copy", "data"]
    assert (await fetch()).partitions[0].seq == 30
    assert state_of(path) == before | {b"k%d" % number: b"new" for number in range(10)}
