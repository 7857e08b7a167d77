from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tailrace_server.manifest.builders import (
    BRANCH,
    FEED,
    PLACEMENT,
    chain,
    id_of,
    manifest_of,
    manifests,
)

from tailrace.model.failover import FailoverLog
from tailrace_server.directory.sealed import seal, unseal
from tailrace_server.manifest import Manifest, ManifestDamaged, SegmentEntry, codec, entry_of, invariants
from tailrace_server.manifest.codec import FORMAT, VERSION
from tailrace_server.segment import SegmentIdentity

PATH = "/data/feeds/f/3/MANIFEST"


@given(manifests())
def test_a_manifest_comes_back(manifest):
    invariants.check(manifest)
    assert codec.decode(codec.encode(manifest), PATH) == manifest


@given(manifests(), st.data())
def test_a_changed_bit_is_found(manifest, data):
    changed = bytearray(codec.encode(manifest))
    bit = data.draw(st.integers(0, 8 * len(changed) - 1))
    changed[bit >> 3] ^= 1 << (bit & 7)
    with pytest.raises(ManifestDamaged, match=r"MANIFEST can't be used: its checksum is wrong; restore") as caught:
        codec.decode(bytes(changed), PATH)
    assert caught.value.path == PATH


@given(manifests(), st.data())
def test_a_cut_manifest_is_found(manifest, data):
    whole = codec.encode(manifest)
    with pytest.raises(ManifestDamaged, match="checksum"):
        codec.decode(whole[: data.draw(st.integers(0, len(whole) - 1))], PATH)


def test_another_version_is_named():
    with pytest.raises(ManifestDamaged, match="it has version 2, known is 1; start the Tailrace that wrote it"):
        codec.decode(seal(FORMAT, 2, {}), PATH)


def test_another_file_is_told():
    with pytest.raises(ManifestDamaged, match="it is no 'tailrace manifest'"):
        codec.decode(seal("tailrace feed", 1, {}), PATH)


def members_of(manifest):
    return unseal(codec.encode(manifest), FORMAT, VERSION)


def why(members):
    """How ``decode`` refuses these members."""
    with pytest.raises(ManifestDamaged) as caught:
        codec.decode(seal(FORMAT, VERSION, members), PATH)
    return caught.value.why


BAD = {
    "feed_id": [None, 1, "", "f0", "F" * 32, "g" * 32],
    "partition": [-1, 2**31, True, 1.0, "1"],
    "hash_first": [0, "0", "0x" + "0" * 14],
    "hash_last": [None],
    "state": ["follower", None, []],
    "segments": [None, {}, [1], [{}], [[]]],
    "flushed_seq": [-1, 2**63, None],
    "purge_seq": ["0"],
    "trim_seq": [0.5],
    "log": [None, {}, [[1, 2]], [["zz", 1, 0]], [[BRANCH.hex(), 1, 0]] * 2],
    "placement_id": ["P"],
    "last_timestamp": [-1],
    "producers": [None, [], {}, {"entries": []}],
    "sinks": [
        [],
        {"a": 1},
        {"a": [-1, "o", 0]},
        {"a": ["1", "o", 0]},
        {"a": [1, "o"]},
        {"a": [1, 2, 0]},
        {"a": [1, "o", 2**63]},
        {"a": [1, "o", 0, 7]},
        {"a": [1, "o", 0, "7"]},
        {"a": [1, "o", 0, "0X00000000000000"]},
        {"": [1, "o", 0]},
        {str(number): [1, "o", 0] for number in range(1_001)},
    ],
    "rollbacks": [-1, None, "1"],
    "made_seq": [-1, None, "1"],
}


def test_every_member_is_checked():
    assert tuple(BAD) == Manifest._fields


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_is_named(name, value):
    reason = why(members_of(manifest_of(chain(10))) | {name: value})
    assert name in reason
    assert len(reason) < 400


def test_how_often_it_was_rolled_back_is_left_out_where_it_never_was():
    assert "rollbacks" not in members_of(manifest_of())
    manifest = manifest_of(rollbacks=3)
    assert members_of(manifest)["rollbacks"] == 3
    assert codec.decode(codec.encode(manifest), PATH) == manifest


def test_the_seq_up_to_which_feeds_were_made_is_left_out_if_all_were():
    assert "made_seq" not in members_of(manifest_of())
    manifest = manifest_of(made_seq=3)
    assert members_of(manifest)["made_seq"] == 3
    assert codec.decode(codec.encode(manifest), PATH) == manifest


@pytest.mark.parametrize("name", [name for name in Manifest._fields if name not in ("rollbacks", "made_seq")])
def test_a_missing_member_is_named(name):
    members = members_of(manifest_of())
    del members[name]
    assert why(members) == f"it has members that are missing or not known: {name}"


def test_an_unknown_member_is_named():
    assert "not known: colour" in why(members_of(manifest_of()) | {"colour": "red"})


BAD_OF_SEGMENTS = {
    "id": ["", 1],
    "base_id": [None],
    "included_ids": [None, ["00"], [id_of(number).hex() for number in range(65)]],
    "is_major": [1, None],
    "deduplicated": ["false"],
    "after_seq": [-1],
    "last_seq": [2**63],
    "branch": ["b0"],
    "nbytes": [-1],
    "rows": [None],
    "tombstones": [0.0],
    "oldest_timestamp": [-1],
    "newest_timestamp": [2**63],
    "placements": [PLACEMENT.hex(), [""]],
}


def test_every_member_of_a_segment_is_checked():
    assert tuple(BAD_OF_SEGMENTS) == SegmentEntry._fields


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_OF_SEGMENTS.items() for value in values]
)
def test_a_bad_value_of_a_segment_is_named(name, value):
    members = members_of(manifest_of(chain(10, 20)))
    members["segments"][1][name] = value
    assert why(members).startswith(f"segments: segment 1.{name}: ")


@given(
    st.dictionaries(
        st.sampled_from(Manifest._fields),
        st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3)),
    )
)
def test_whatever_the_members_are_it_is_a_manifest_or_damaged(changes):
    members = members_of(manifest_of(chain(10, 20))) | changes
    try:
        manifest = codec.decode(seal(FORMAT, VERSION, members), PATH)
    except ManifestDamaged:
        return
    assert codec.decode(codec.encode(manifest), PATH) == manifest


def test_what_does_not_hold_is_damage_and_is_never_written():
    broken = manifest_of(chain(10, 20), flushed_seq=21)
    with pytest.raises(AssertionError, match=r"f0f1.*/3: its segments end at 20, and its flushed seq is 21"):
        codec.encode(broken)
    members = members_of(manifest_of(chain(10, 20))) | {"flushed_seq": 21}
    assert why(members) == "its segments end at 20, and its flushed seq is 21"


def test_numbers_that_other_readers_would_round_are_text():
    members = members_of(manifest_of(hash_first=1, hash_last=2**64 - 1))
    assert (members["hash_first"], members["hash_last"]) == ("0000000000000001", "f" * 16)


def test_it_is_small():
    """Half a kilobyte for each segment."""
    many = manifest_of(chain(*range(10, 2_010, 10)))
    assert len(codec.encode(many)) < 200 * 600
    json.loads(codec.encode(many).splitlines()[0])


def test_the_entry_of_a_segment_and_back():
    same = {
        "base_id": id_of(1),
        "included_ids": (id_of(8), id_of(9)),
        "is_major": True,
        "deduplicated": True,
        "after_seq": 10,
        "last_seq": 30,
        "branch": BRANCH,
        "rows": 15,
        "tombstones": 2,
        "oldest_timestamp": 100,
        "newest_timestamp": 200,
    }
    identity = SegmentIdentity(feed_id=FEED, partition=3, segment_id=id_of(2), purge_seq=5, key_value_bytes=999, **same)
    entry = entry_of(identity, 4_096, [PLACEMENT])
    assert entry == SegmentEntry(id=id_of(2), nbytes=4_096, placements=(PLACEMENT,), **same)
    assert manifest_of().identity_of(entry) == identity._replace(purge_seq=0, key_value_bytes=0)


def test_a_log_of_several_branches_comes_back():
    log = FailoverLog([(b"w" * 16, 3, 15), (b"v" * 16, 2, 10), (BRANCH, 1, 0)])
    segments = (chain(10)[0], chain(10, 12)[1]._replace(branch=b"v" * 16))
    manifest = manifest_of(segments, log=log)
    assert codec.decode(codec.encode(manifest), PATH).log == log
