"""The level that a feed has of its own, for writes that name none."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import Forbidden, TailraceError
from tailrace.model import FeedInfo, Level
from tailrace_server.feeds.feed import (
    Feed,
    creation_to_bytes,
    feed_of_creation,
    info_of_request,
    info_to_json,
    settings_of_creation,
)
from tailrace_server.feeds.feed_settings import LEVELS, NO_FLOORS, Floors, as_listed, check_level
from tailrace_server.state.memory import MemoryAccount

INFO = FeedInfo("orders", b"f" * 16, 1, "hash", "compact", None, None, 100.0, "stream")
BRANCH = b"u" * 16
INFOS = st.builds(
    INFO._replace, level=st.none() | st.sampled_from(LEVELS), replication=st.sampled_from(["stream", "segment"])
)


@dataclass
class Of02:
    """A feed's settings as 0.2 read them from a row of ``_feeds``: another member is a TypeError."""

    name: str
    feed_id: str
    partitions: int
    keyspace: str
    retention: str
    history_age_s: float | None
    history_bytes: float | None
    tombstone_age_s: float
    replication: str


def feed_of(info):
    return Feed.of(info, BRANCH, MemoryAccount())


@given(INFOS, st.sampled_from([Level.DISK, Level.QUORUM]))
def test_the_level_of_a_write_that_names_none(info, safest):
    feed = feed_of(info)
    if info.level is None:
        expected = Level.DISK if info.replication == "segment" else safest
        assert feed.write_level(safest) == feed.read_level(safest) == feed.default_level(safest) == expected
        return
    own = Level.parse(info.level)
    assert feed.default_level(safest) == own
    assert feed.read_level(safest) == min(own, safest)
    if own <= safest:
        assert feed.write_level(safest) == own
    else:
        with pytest.raises(Forbidden, match=r"orders' has level quorum, .* `tailrace feed set orders --level default`"):
            feed.write_level(safest)


@given(INFOS, st.booleans())
def test_a_level_that_is_let_in_is_one_that_writes_get(info, in_set):
    try:
        check_level(info, in_set=in_set)
    except Forbidden:
        assert info.level == "quorum"
        assert info.replication == "segment" or not in_set
    else:
        assert feed_of(info).write_level(Level.QUORUM if in_set else Level.DISK) <= Level.QUORUM


@given(INFOS, st.sampled_from([NO_FLOORS, Floors(3, 4)]))
def test_a_row_has_the_level(info, floors):
    payload = creation_to_bytes(info, BRANCH, floors)
    assert settings_of_creation(payload) == (info, floors)
    assert feed_of_creation(payload, MemoryAccount()).info == info
    assert (b"level" in payload) == (info.level is not None), "left out if there is none"


@given(INFOS)
def test_an_older_node_reads_the_row_and_ignores_the_level(info):
    Of02(**json.loads(creation_to_bytes(info, BRANCH))["feed"])


def test_a_level_of_a_later_release_counts_as_none():
    payload = creation_to_bytes(INFO._replace(level="disk"), BRANCH).replace(b'"disk"', b'"three-continents"')
    assert settings_of_creation(payload)[0] == INFO


def test_a_row_changes_the_level():
    assert as_listed(INFO, INFO._replace(level="memory")).level == "memory"
    assert as_listed(INFO._replace(level="memory"), INFO).level is None
    history = INFO._replace(retention="history", level="disk")
    assert as_listed(INFO, history).level == "disk", "also after a repair that has lost the retention"


def test_a_feed_that_is_set_has_the_new_level():
    feed = feed_of(INFO)
    feed.set(INFO._replace(level="memory"), NO_FLOORS)
    assert feed.write_level(Level.QUORUM) == Level.MEMORY
    feed.set(INFO, NO_FLOORS)
    assert feed.write_level(Level.QUORUM) == Level.QUORUM


def test_requests():
    request = {"name": "orders", "feed_id": "66" * 16}
    assert info_of_request(request, 100).level is None
    assert info_to_json(info_of_request(request, 100))["level"] is None
    assert info_of_request({**request, "level": "memory"}, 100).level == "memory"
    for level in ("replicas", "DISK", 1, ["disk"], ""):
        with pytest.raises(TailraceError, match=r"level .* is not offered by this node; null, memory, disk, quorum"):
            info_of_request({**request, "level": level}, 100)
