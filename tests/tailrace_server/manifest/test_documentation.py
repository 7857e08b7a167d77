"""docs/formats/manifest.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tailrace_server.manifest.builders import BRANCH, chain, manifest_of

from tailrace.model import FeedInfo, VersionRange
from tailrace.segment.identity import INCLUDED_IDS_MAX
from tailrace_server.manifest import Manifest, SegmentEntry, codec, producers_to_json, store
from tailrace_server.manifest.feed_file import NAME_LENGTH_MAX, FeedFile
from tailrace_server.manifest.invariants import PLACEMENTS_MAX, SEGMENTS_MAX, SINKS_MAX
from tailrace_server.manifest.producers import NO_PRODUCERS
from tailrace_server.state.last_batches import LastBatch
from tailrace_server.state.producers import PRODUCERS_MAX, RESULTS_MAX, ProducerTable

PAGE = (Path(__file__).parents[3] / "docs" / "formats" / "manifest.md").read_text()


def members(heading):
    """The names in the first column of the first table behind this text."""
    table = PAGE[PAGE.index(heading) :].split("|---|---|\n")[1].split("\n\n")[0]
    return [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])]


def test_the_members_are_those_of_the_code():
    settings = set(FeedInfo._fields) - {"level", "ttl_s"}  # those are only in the rows of _feeds
    assert set(members("\n## FEED\n")) == settings | {"branch"} == settings | {FeedFile._fields[1]}
    assert members("\n## MANIFEST\n") == list(Manifest._fields)
    assert members("\nA segment repeats") == list(SegmentEntry._fields)
    assert members("\n`producers`, as of") == list(NO_PRODUCERS)


def test_the_names_are_those_of_the_code():
    for name in (store.FEED_NAME, store.DROPPED_NAME, store.MANIFEST_NAME, store.FEEDS_NAME):
        assert re.search(rf"`(feeds/<feed id>/)?(<partition>/)?{re.escape(name)}[`/]", PAGE)


def test_the_bounds_are_those_of_the_code():
    for text, bound in (
        ("oldest first, at most", SEGMENTS_MAX),
        ("compacted into it, at most", INCLUDED_IDS_MAX),
        ("acknowledged a copy, at most", PLACEMENTS_MAX),
        ("published here; at most", SINKS_MAX),
        ("least recently used first, at most", PRODUCERS_MAX),
        ("there are at most", RESULTS_MAX),
        ("the feed's name, 1 to", NAME_LENGTH_MAX),
    ):
        assert f"{text} {bound:,}" in PAGE


def test_the_worked_example_is_what_is_written():
    table = ProducerTable()
    table.record(0x1122334455667788, 1, VersionRange(3, BRANCH, 1, 100), 0.0)
    table.record(0x1122334455667788, 2, VersionRange(3, BRANCH, 101, 120), 0.0)
    manifest = manifest_of(
        chain(120),
        hash_first=0xC000000000000000,
        hash_last=0xFFFFFFFFFFFFFFFF,
        producers=producers_to_json(table, 120, 12.5),
        sinks={"orders-job": LastBatch(7, "orders-job", 118, 0x871B949F7487893D)},
    )
    *lines, checksum = re.findall(r"```\n(.*?)\n```", PAGE, re.DOTALL)[0].splitlines()
    text = re.sub(r"^ +", "", "\n".join(lines), flags=re.MULTILINE).replace("\n", "")
    data = f"{text}\n{checksum}\n".encode()
    assert data == codec.encode(manifest)
    assert codec.decode(data, "MANIFEST") == manifest
