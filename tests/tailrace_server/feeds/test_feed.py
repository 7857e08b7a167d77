import pytest

from tailrace.errors import ProtocolError, TailraceError
from tailrace_server.feeds.feed import (
    Feed,
    creation_to_bytes,
    feed_of_creation,
    info_from_json,
    info_of_request,
    info_to_json,
)
from tailrace_server.state.memory import MemoryAccount

REQUEST = {"name": "orders", "feed_id": "ab" * 16}


def test_what_is_left_out_has_a_default():
    info = info_of_request(REQUEST, 100)
    assert info._asdict() == {
        "name": "orders",
        "feed_id": b"\xab" * 16,
        "partitions": 16,
        "keyspace": "hash",
        "retention": "compact",
        "history_age_s": None,
        "history_bytes": None,
        "tombstone_age_s": 259_200,
        "replication": "stream",
        "level": None,
        "ttl_s": None,
    }


def test_it_reads_back():
    info = info_of_request({**REQUEST, "partitions": 3, "retention": "history", "history_age_s": 1.5}, 100)
    assert info_from_json(info_to_json(info)) == info
    made = feed_of_creation(creation_to_bytes(info, b"u" * 16), MemoryAccount())
    assert made.info == info
    assert {partition.log.branch for partition in made.partitions} == {b"u" * 16}


@pytest.mark.parametrize("name", ["a", "0", "a" * 100, "a.b_c-d", "1-2"])
def test_names(name):
    assert info_of_request({**REQUEST, "name": name}, 100).name == name


@pytest.mark.parametrize("name", ["", "A", ".a", "-a", "_a", "a/b", "a b", "ä", "a" * 101, "a\n", "..", None, 7, []])
def test_what_is_no_name(name):
    with pytest.raises(TailraceError, match="cannot be the name of a feed"):
        info_of_request({**REQUEST, "name": name}, 100)


@pytest.mark.parametrize("value", [{}, {"name": "a"}, {**REQUEST, "feed_id": "ab"}, {**REQUEST, "feed_id": 7}])
def test_requests_that_cannot_be_read(value):
    with pytest.raises(ProtocolError, match="CREATE_FEED"):
        info_of_request(value, 100)


@pytest.mark.parametrize("partitions", [1, 2, 3, 100])
def test_partitions_own_all_hashes(partitions):
    account = MemoryAccount()
    feed = Feed.of(info_of_request({**REQUEST, "partitions": partitions}, 100), b"u" * 16, account)
    assert feed.first_branch == b"u" * 16
    assert {p.account for p in feed.partitions} == {account}
    assert [p.id for p in feed.partitions] == list(range(partitions))
    assert feed.partitions[0].hash_first == 0
    assert feed.partitions[-1].hash_last == 2**64 - 1
    for low, high in zip(feed.partitions, feed.partitions[1:], strict=False):
        assert low.hash_last + 1 == high.hash_first


def test_partitions_begin_with_one_log_that_they_share():
    feed = Feed.of(info_of_request({**REQUEST, "partitions": 100}, 100), b"u" * 16, MemoryAccount())
    assert {id(partition.log) for partition in feed.partitions} == {id(feed.partitions[0].log)}
    assert [tuple(entry) for entry in feed.partitions[0].log] == [(b"u" * 16, 1, 0)]


def test_more_partitions_than_the_node_holds():
    with pytest.raises(TailraceError, match="101 partitions; 1 to 100 can be had"):
        info_of_request({**REQUEST, "partitions": 101}, 100)
