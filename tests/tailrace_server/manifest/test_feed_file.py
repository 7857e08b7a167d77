from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tailrace_server.manifest.builders import feed_file

from tailrace.model import FeedInfo
from tailrace_server.directory.sealed import seal, unseal
from tailrace_server.feeds.feed import FEED_NAME
from tailrace_server.manifest import FeedFile, ManifestDamaged
from tailrace_server.manifest.feed_file import FORMAT, VERSION

PATH = "/data/feeds/f/FEED"
ID = st.binary(min_size=16, max_size=16)
NUMBER = st.integers(0, 2**53) | st.floats(0, 1e15)
FEEDS = st.builds(
    FeedFile,
    st.builds(
        FeedInfo,
        st.from_regex(FEED_NAME, fullmatch=True),
        ID,
        st.integers(1, 2**31 - 1),
        st.just("hash"),
        st.sampled_from(["compact", "history"]),
        st.none() | NUMBER,
        st.none() | NUMBER,
        NUMBER,
        st.just("stream"),
        st.none(),
        st.none(),
    ),
    ID,
)


@given(FEEDS)
def test_a_feed_comes_back(feed):
    found = FeedFile.decode(feed.encode(), PATH)
    assert found == feed
    assert [type(value) for value in found.info] == [type(value) for value in feed.info]


def test_a_level_is_not_in_the_file():
    """An older node reads the file then, and the row of ``_feeds`` has the level."""
    feed = feed_file(level="memory")
    assert b"memory" not in feed.encode()
    assert FeedFile.decode(feed.encode(), PATH) == feed_file()


@given(st.binary(max_size=200))
def test_anything_else_is_damage(data):
    with pytest.raises(ManifestDamaged, match=r"FEED can't be used: its checksum is wrong; restore the directory"):
        FeedFile.decode(data, PATH)


def test_another_version_is_named():
    with pytest.raises(ManifestDamaged, match="it has version 2, known is 1; start the Tailrace that wrote it"):
        FeedFile.decode(seal(FORMAT, 2, {}), PATH)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", ""),
        ("name", "x" * 101),
        ("name", 1),
        ("feed_id", "00"),
        ("partitions", 0),
        ("partitions", 1.5),
        ("keyspace", "range"),
        ("retention", "forever"),
        ("history_age_s", -1),
        ("history_bytes", "1"),
        ("tombstone_age_s", None),
        ("tombstone_age_s", float("nan")),
        ("replication", ""),
        ("branch", None),
    ],
)
def test_a_bad_value_is_named(name, value):
    members = unseal(feed_file().encode(), FORMAT, VERSION) | {name: value}
    with pytest.raises(ManifestDamaged, match=f"can't be used: {name}: "):
        FeedFile.decode(seal(FORMAT, VERSION, members), PATH)
