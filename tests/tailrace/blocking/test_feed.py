from __future__ import annotations

import pytest

import tailrace
from tailrace import Delete, Put, blocking
from tailrace.block import BODY_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.requests.changes import BATCH_BYTES_MAX
from tailrace.wire.messages import GET_KEYS_MAX


def test_put_and_get(feed):
    version = feed.put(b"k", b"v")
    item = feed.get(b"k")
    assert (item.key, item.value, item.version) == (b"k", b"v", version)
    assert version.partition == partition_of_hash(key_hash(b"k"), 4)
    assert feed.put(b"k", b"w").seq == version.seq + 1
    assert feed.get(b"k", level="memory", at_least=version).value == b"w"


def test_what_is_not_there(feed):
    assert feed.get(b"nothing") is None
    assert feed.delete_if_present(b"nothing") is None


def test_empty_and_largest_values(feed):
    feed.put(b"\0", b"")
    largest = b"x" * VALUE_BYTES_MAX
    feed.put(b"k" * KEY_BYTES_MAX, largest)
    assert feed.get(b"\0").value == b""
    assert feed.get(b"k" * KEY_BYTES_MAX).value == largest


def test_delete(feed):
    feed.put(b"k", b"v")
    version = feed.delete(b"k")
    assert feed.get(b"k") is None
    assert feed.delete(b"k").seq == version.seq + 1
    feed.put(b"k", b"w")
    assert feed.delete_if_present(b"k").seq == version.seq + 3
    assert feed.delete_if_present(b"k") is None


def test_conditions(feed):
    version = feed.put(b"k", b"v", if_absent=True)
    with pytest.raises(tailrace.VersionConflict) as caught:
        feed.put(b"k", b"other", if_absent=True)
    assert caught.value.current == version
    changed = feed.put(b"k", b"w", if_version=version)
    with pytest.raises(tailrace.VersionConflict) as caught:
        feed.put(b"k", b"other", if_version=version)
    assert caught.value.current == changed
    with pytest.raises(tailrace.VersionConflict):
        feed.delete(b"k", if_version=version)
    feed.delete(b"k", if_version=changed)
    assert feed.get(b"k") is None


def test_conditions_that_make_no_sense(feed):
    version = feed.put(b"k", b"v")
    with pytest.raises(ValueError, match="contradict"):
        feed.put(b"k", b"w", if_version=version, if_absent=True)
    with pytest.raises(ValueError, match="is in partition"):
        feed.put(b"k", b"w", if_version=version._replace(partition=version.partition ^ 1))


def test_get_many_in_their_order(feed):
    feed.write([Put(b"%d" % number, b"v%d" % number) for number in range(0, 5000, 2)])
    asked = [b"%d" % number for number in range(5000)]
    assert len(asked) > GET_KEYS_MAX
    found = feed.get_many(iter(asked))
    assert [item and item.value for item in found] == [None if n % 2 else b"v%d" % n for n in range(5000)]
    assert feed.get_many([]) == []


def test_write_is_in_order_and_gives_the_versions(feed, contents, shared_node):
    versions = feed.write([Put(b"a", b"1"), Put(b"b", b"1"), Delete(b"a"), Put(b"a", b"2")], level="memory")
    assert sum(v.last_seq - v.first_seq + 1 for v in versions.values()) == 4
    assert all(number == v.partition for number, v in versions.items())
    assert contents(shared_node.url, feed.name).history() == {b"a": [b"1", None, b"2"], b"b": [b"1"]}
    assert feed.write([]) == {}


def test_many_batches_use_one_producer_for_each_partition(feed, contents, shared_node):
    for number in range(20):
        feed.write([Put(b"k%d" % key, b"%d" % number) for key in range(20)])
        feed.put(b"k", b"%d" % number)
    blocks = contents(shared_node.url, feed.name).blocks
    assert len({(block.header.partition, block.header.producer_id) for block in blocks}) == 4


def test_batch_that_is_too_large_writes_nothing(feed):
    values = [b"x" * VALUE_BYTES_MAX] * (BODY_BYTES_MAX // VALUE_BYTES_MAX + 1)
    with pytest.raises(tailrace.TooLarge, match="write less at once"):
        feed.write([Put(b"small", b"1"), *(Put(b"k", value) for value in values)])
    assert feed.get(b"small") is None


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("k", b"v"), TypeError, r"\.encode\(\)"),
        ((b"k", "v"), TypeError, r"\.encode\(\)"),
        ((b"k", None), TypeError, r"delete\(\)"),
        ((b"", b"v"), ValueError, "empty"),
        ((b"k" * (KEY_BYTES_MAX + 1), b"v"), tailrace.TooLarge, "key"),
        ((b"k", b"v" * (VALUE_BYTES_MAX + 1)), tailrace.TooLarge, "value"),
    ],
)
def test_bad_rows(feed, arguments, error, text):
    with pytest.raises(error, match=text):
        feed.put(*arguments)
    with pytest.raises(error, match=text), feed.writer() as writer:
        writer.put(*arguments)
    with pytest.raises(error, match=text):
        feed.write([Put(*arguments)])


def test_bad_keys_of_reads_and_deletions(feed):
    for call in (feed.get, feed.delete, feed.delete_if_present):
        with pytest.raises(TypeError, match=r"\.encode\(\)"):
            call("k")


def test_levels(feed):
    feed.put(b"k", b"v", level="memory")
    with pytest.raises(ValueError, match="'disc'"):
        feed.put(b"k", b"v", level="disc")
    for call in (feed.put, feed.write):
        with pytest.raises(tailrace.NotDurable, match="quorum"):
            call(*((b"k", b"v") if call == feed.put else ([],)), level="quorum")


def test_partitions(feed):
    feed.put(b"k", b"v")
    found = feed.partitions()
    assert [info.id for info in found] == [0, 1, 2, 3]
    assert found[0].hash_first == 0
    assert found[-1].hash_last == 2**64 - 1
    assert sum(info.durable_seq for info in found) == 1


def test_unknown_feed(client):
    feed = client.feed("nothing-here")
    for call in (lambda: feed.put(b"k", b"v"), lambda: feed.get(b"k"), feed.writer, feed.partitions):
        with pytest.raises(tailrace.UnknownFeed, match="'nothing-here'"):
            call()


def test_feed_that_was_made_again_is_found_at_the_second_use(client, feed):
    def once_more():
        feed.put(b"k", b"v")
        client.drop_feed(feed.name)
        client.create_feed(feed.name, partitions=2)

    once_more()
    with pytest.raises(tailrace.UnknownFeed):
        feed.put(b"k", b"v")
    assert feed.get(b"k") is None
    once_more()
    with pytest.raises(tailrace.UnknownFeed), feed.writer() as writer:
        writer.put(b"k", b"v")
    with feed.writer() as writer:
        writer.put(b"k", b"w")
    assert feed.get(b"k").value == b"w"


@pytest.mark.parametrize(
    ("bounds", "name"),
    [
        ({"batch_bytes": 0}, "batch_bytes"),
        ({"batch_bytes": BATCH_BYTES_MAX + 1}, "batch_bytes"),
        ({"batch_rows": 0}, "batch_rows"),
        ({"batch_rows": 65_537}, "batch_rows"),
        ({"in_flight_bytes": 0}, "in_flight_bytes"),
    ],
)
def test_bounds_of_a_writer(feed, bounds, name):
    with pytest.raises(ValueError, match=name):
        feed.writer(**bounds)


def test_two_clients_see_each_other(feed, shared_node):
    with blocking.connect(shared_node.url) as other:
        version = feed.put(b"k", b"v")
        assert other.feed(feed.name).get(b"k").version == version
