"""What a change of a feed's settings means for rows that are gone, or may go."""

import pytest

from tailrace.errors import ProtocolError, TailraceError
from tailrace.model import FeedInfo
from tailrace_server.feeds.feed import Feed, creation_to_bytes, feed_of_creation
from tailrace_server.feeds.feed_settings import (
    NO_FLOORS,
    Floors,
    as_listed,
    changed,
    changes_of_request,
    floors_after,
    loosest,
)
from tailrace_server.state.memory import MemoryAccount

COMPACT = FeedInfo("orders", b"f" * 16, 1, "hash", "compact", None, None, 100.0, "stream")
HISTORY = COMPACT._replace(retention="history")
NOW = 1_000_000_000_000


def test_the_settings_of_a_request():
    assert changes_of_request({"feed_id": "", "history_age_s": None}) == {"history_age_s": None}
    with pytest.raises(ProtocolError, match="names no setting"):
        changes_of_request({"feed_id": ""})


@pytest.mark.parametrize("name", ["partitions", "keyspace", "retention", "name"])
def test_what_cannot_be_changed_is_refused_by_name(name):
    with pytest.raises(TailraceError, match=f"{name} of a feed cannot be changed: "):
        changes_of_request({"replication": "segment", name: "x"})


def test_settings_of_histories_are_refused_for_a_compact_feed():
    with pytest.raises(TailraceError, match=r"retention compact: history_age_s is for histories"):
        changed(COMPACT, {"history_age_s": 3.0})
    assert changed(COMPACT, {"history_age_s": None}) == COMPACT
    assert changed(HISTORY, {"history_age_s": 3.0}).history_age_s == 3.0


@pytest.mark.parametrize(
    ("before", "after", "floors"),
    [
        (COMPACT, COMPACT._replace(tombstone_age_s=200.0), Floors(NOW - 100_000_000, 0)),
        (COMPACT, COMPACT._replace(tombstone_age_s=50.0), NO_FLOORS),
        (HISTORY._replace(history_age_s=10.0), HISTORY, Floors(0, NOW - 10_000_000)),
        (HISTORY._replace(history_age_s=10.0), HISTORY._replace(history_age_s=20.0), Floors(0, NOW - 10_000_000)),
        (HISTORY._replace(history_age_s=10.0), HISTORY._replace(history_age_s=5.0), NO_FLOORS),
        (HISTORY, HISTORY._replace(history_age_s=5.0), NO_FLOORS),
        (HISTORY._replace(history_bytes=10), HISTORY, Floors(0, NOW)),
        (HISTORY._replace(history_bytes=10), HISTORY._replace(history_bytes=20), NO_FLOORS),
        (COMPACT, COMPACT._replace(replication="segment"), NO_FLOORS),
    ],
)
def test_before_which_time_rows_may_be_gone(before, after, floors):
    assert floors_after(NO_FLOORS, before, after, NOW) == floors


def test_floors_only_rise():
    assert floors_after(Floors(NOW, NOW), COMPACT, COMPACT._replace(tombstone_age_s=1e3), NOW) == Floors(NOW, NOW)


def test_the_settings_that_keep_most():
    one = HISTORY._replace(history_age_s=10.0, history_bytes=None, tombstone_age_s=1.0)
    other = HISTORY._replace(history_age_s=5.0, history_bytes=7, tombstone_age_s=2.0, replication="segment")
    assert loosest(one, other) == other._replace(history_age_s=10.0, history_bytes=None, tombstone_age_s=2.0)


def test_floors_are_kept_in_the_row():
    payload = creation_to_bytes(COMPACT, b"u" * 16, Floors(3, 4))
    feed = feed_of_creation(payload, MemoryAccount())
    assert (feed.info, feed.floors) == (COMPACT, Floors(3, 4))
    assert b"floors" not in creation_to_bytes(COMPACT, b"u" * 16)


def test_a_shorter_age_counts_once_its_row_cannot_be_lost():
    feed = Feed.of(HISTORY._replace(history_age_s=10.0), b"u" * 16, MemoryAccount())
    feed.partitions[0].list_at(1)
    assert feed.retention(1).history_age_s == 10.0
    for age_s in (5.0, 3.0):
        feed.set(HISTORY._replace(history_age_s=age_s), NO_FLOORS)
    feed.partitions[0].list_at(3)
    assert feed.info.history_age_s == 3.0
    assert feed.retention(2).history_age_s == 10.0
    assert feed.retention(3).history_age_s == 3.0
    assert feed.retention(0).history_age_s == 3.0, "no rollback reaches it any more"


def test_a_row_changes_what_can_be_changed():
    """A repair that has lost FEED gives the feed another name, and guesses its retention."""
    own = FeedInfo("recovered-1", bytes(16), 4, "hash", "compact", None, None, 60.0, "stream")
    listed = FeedInfo("orders", bytes(16), 8, "hash", "compact", None, None, 90.0, "segment")
    assert as_listed(own, listed) == own._replace(tombstone_age_s=90.0, replication="segment")
    history = listed._replace(retention="history", history_age_s=5.0, history_bytes=7)
    assert as_listed(own, history) == own._replace(tombstone_age_s=90.0, replication="segment")
    assert as_listed(history._replace(history_age_s=None), history) == history
