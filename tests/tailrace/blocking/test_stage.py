"""Stages and publishes over a real connection, without async."""

from __future__ import annotations

import pytest

import tailrace
from tailrace import blocking
from tailrace.block import digest_of_block, digest_of_rows, encode_block
from tailrace.model import Delete, Put
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.requests.staging import SealedStage


def staged(feed, rows, **options):
    with feed.stage(**options) as stage:
        stage.write([Put(key, value) if value is not None else Delete(key) for key, value in rows])
        return stage.seal()


def rows_of(begin, end, value=b"v"):
    return [(b"key-%d" % number, value) for number in range(begin, end)]


def test_what_is_staged_is_not_seen_before_it_is_published(feed, contents, shared_node, feed_name):
    sealed = staged(feed, [*rows_of(0, 100), (b"key-7", None)])
    assert (sealed.rows, sealed.partitions) == (101, (0, 1, 2, 3))
    assert feed.get(b"key-1") is None
    published = feed.publish("sink", 0, [sealed])
    assert sorted(published.written) == [0, 1, 2, 3]
    assert published.skipped == ()
    found = contents(shared_node.url, feed_name).history()
    assert found == {key: [value] for key, value in rows_of(0, 100)} | {b"key-7": [b"v", None]}


def test_a_batch_is_published_once(feed):
    first, other = staged(feed, rows_of(0, 50)), staged(feed, rows_of(0, 50, b"other"))
    feed.publish("sink", 3, [first])
    assert feed.publish("sink", 3, [first]).skipped == (0, 1, 2, 3)
    assert feed.publish("sink", 3, [other], compare=False) == ({}, (0, 1, 2, 3))
    with pytest.raises(tailrace.BatchBehind, match="older than the last one of the same origin") as caught:
        feed.publish("sink", 2, [staged(feed, rows_of(0, 50, b"older"))])
    assert caught.value.first_batch == 4
    assert feed.get(b"key-1").value == b"v"
    feed.publish("sink", 4, [staged(feed, rows_of(0, 50, b"newer"))])
    assert feed.get(b"key-1").value == b"newer"
    feed.publish("another", 0, [staged(feed, rows_of(0, 50, b"another's"))])
    assert feed.get(b"key-1").value == b"another's"


def test_a_partition_that_lacks_a_batch_takes_its_share(feed):
    one = staged(feed, rows_of(0, 1))
    feed.publish("sink", 0, [one])
    published = feed.publish("sink", 0, [staged(feed, rows_of(0, 100, b"again"))], compare=False)
    assert published.skipped == one.partitions
    assert len(published.written) == 3
    assert feed.get(b"key-0").value == b"v"


OTHER_ROWS = {
    "another value": [*rows_of(0, 49), (b"key-49", b"w")],
    "two values changed about": [(b"key-0", b"1"), (b"key-1", b"0"), *rows_of(2, 50)],
    "a deletion": [*rows_of(0, 49), (b"key-49", None)],
    "a row less": rows_of(0, 49),
    "a row twice": [*rows_of(0, 50), (b"key-0", b"v")],
    "in a partition that had none": rows_of(0, 100),
    "all in partitions that had none": rows_of(100, 200),
}


@pytest.mark.parametrize("rows", OTHER_ROWS.values(), ids=OTHER_ROWS.keys())
@pytest.mark.parametrize("pieces", [1, 3])
def test_a_number_comes_again_with_other_rows(client, feed_name, rows, pieces, contents, shared_node):
    """As of a checkpoint that is older by one batch: no row is left out without a word, and none is written."""
    feed = client.create_feed(f"{feed_name}-wide", partitions=512)
    before = [(key, b"0" if key == b"key-0" else b"1" if key == b"key-1" else value) for key, value in rows_of(0, 50)]
    feed.publish("sink", 3, [staged(feed, before[25:]), staged(feed, before[:25])])
    history = contents(shared_node.url, feed.name).history()
    again = [staged(feed, rows[begin::pieces]) for begin in range(pieces)]
    with pytest.raises(tailrace.BatchChanged, match=r"batch 3 .* other rows.* begin at batch 4") as caught:
        feed.publish("sink", 3, again)
    assert caught.value.first_batch == 4
    assert contents(shared_node.url, feed.name).history() == history
    feed.publish("sink", 4, again)
    assert sum(map(len, contents(shared_node.url, feed.name).history().values())) == 50 + len(rows)


def test_the_same_rows_in_another_order_and_other_stages_are_passed_over(feed):
    rows = [*rows_of(0, 50), (b"key-7", None)]
    feed.publish("sink", 3, [staged(feed, rows)])
    again = [staged(feed, rows[begin::3][::-1], batch_rows=2) for begin in range(3)]
    assert feed.publish("sink", 3, again) == ({}, (0, 1, 2, 3))


def test_a_digest_that_is_not_known_is_not_compared(feed):
    """Of stages that an older client has made."""
    feed.publish("sink", 0, [staged(feed, rows_of(0, 50))._replace(digest=None)])
    assert feed.publish("sink", 0, [staged(feed, rows_of(1, 50))]).skipped == (0, 1, 2, 3)
    feed.publish("sink", 1, [staged(feed, rows_of(0, 50))])
    assert feed.publish("sink", 1, [staged(feed, rows_of(1, 50))._replace(digest=None)]).skipped == (0, 1, 2, 3)


def test_a_block_of_the_callers_may_come_with_its_digest(feed):
    partition = partition_of_hash(key_hash(b"k"), 4)
    blocks = [encode_block([b"k"], [value], partition=partition) for value in (b"v", None)]
    found = []
    for digests in ([None, None], [digest_of_block(block) for block in blocks]):
        with feed.stage() as stage:
            for block, digest in zip(blocks, digests, strict=True):
                stage.send(block, digest=digest)
            found.append(stage.seal().digest)
    assert found == [digest_of_rows([key_hash(b"k")] * 2, [b"v", None])] * 2


def test_another_origin_may_not_use_numbers_again(feed):
    feed.publish("sink", 7, [staged(feed, rows_of(0, 50))], origin="query 1")
    again = staged(feed, rows_of(0, 50, b"again"))
    with pytest.raises(tailrace.BatchBehind, match="has to begin at batch 8") as caught:
        feed.publish("sink", 0, [again], origin="query 2")
    assert caught.value.first_batch == 8
    assert feed.get(b"key-1").value == b"v"
    feed.publish("sink", 8, [again], origin="query 2")
    assert feed.get(b"key-1").value == b"again"
    assert feed.publish("sink", 8, [again], origin="query 2").skipped == (0, 1, 2, 3)
    with pytest.raises(tailrace.BatchBehind):
        feed.publish("sink", 8, [staged(feed, rows_of(0, 50))], origin="query 1")


def test_an_unknown_stage_refuses_the_whole_publish(feed):
    sealed = staged(feed, rows_of(0, 50))
    with pytest.raises(tailrace.UnknownStage, match="1 of 2 stages are not here"):
        feed.publish("sink", 0, [sealed, SealedStage(b"\x01" * 16, (0,), 1, 1)])
    assert feed.get(b"key-1") is None
    assert len(feed.publish("sink", 0, [sealed]).written) == 4


def test_a_stage_of_thousands_of_partitions(client, feed_name):
    feed = client.create_feed(f"{feed_name}-wide", partitions=4_096)
    sealed = staged(feed, rows_of(0, 30_000))
    assert sealed.blocks == len(sealed.partitions) > 4_000
    assert tuple(feed.publish("sink", 0, [sealed]).written) == sealed.partitions
    assert feed.publish("sink", 0, [sealed]).skipped == sealed.partitions


def test_more_stages_than_a_node_holds_are_refused(feed):
    stages = [SealedStage(b"%016d" % number, (0,), 1, 1) for number in range(4_097)]
    with pytest.raises(tailrace.TooLarge, match="4097 stages; at most 4096"):
        feed.publish("sink", 0, stages)
    with pytest.raises(tailrace.UnknownStage, match="4096 of 4096 stages are not here"):
        feed.publish("sink", 0, stages[1:])


def test_a_stage_that_is_given_twice_is_refused(feed):
    stage = feed.stage()
    stage.put(b"k", b"v")
    sealed = stage.seal()
    with pytest.raises(ValueError, match="given twice"):
        feed.publish("sink", 0, [sealed, sealed])
    assert feed.get(b"k") is None


def test_an_unsealed_stage_is_unknown(feed):
    stage = feed.stage(batch_rows=1)
    stage.put(b"k", b"v")
    with pytest.raises(tailrace.UnknownStage):
        feed.publish("sink", 0, [SealedStage(stage.stage_id, (0, 1, 2, 3), 1, 1)])


def test_an_empty_stage_asks_nothing(feed):
    sealed = staged(feed, [])
    assert (sealed.rows, sealed.partitions) == (0, ())
    assert feed.publish("sink", 0, [sealed]) == ({}, ())


def test_many_blocks_pipelined(feed, contents, shared_node, feed_name):
    rows = [(b"key-%d" % number, b"x" * 500) for number in range(5_000)]
    sealed = [staged(feed, rows[begin::3], batch_rows=10, in_flight_bytes=20_000) for begin in range(3)]
    feed.publish("sink", 0, sealed)
    assert contents(shared_node.url, feed_name).history() == {key: [value] for key, value in rows}


def test_what_a_restart_of_the_node_leaves(node_process, contents):
    rows = rows_of(0, 3_000)
    with blocking.connect(node_process.url, retry_for=60) as client:
        feed = client.create_feed("orders", partitions=4)
        sealed = staged(feed, rows_of(3_000, 3_100))
        with feed.stage(batch_rows=10) as stage:
            for number, (key, value) in enumerate(rows):
                stage.put(key, value)
                if number in (700, 1500):
                    node_process.kill()
                    node_process.start()
            sealed = [sealed, stage.seal()]
        node_process.kill()
        node_process.start()
        feed.publish("sink", 0, sealed)
        node_process.kill()
        node_process.start()
        assert feed.publish("sink", 0, sealed).skipped == (0, 1, 2, 3)
    assert contents(node_process.url).history() == {key: [value] for key, value in rows_of(0, 3_100)}


def test_over_a_bad_network(node_process, bad_network, contents):
    rows = [(b"key-%d" % number, b"x" * 300) for number in range(2_000)]
    network = bad_network(node_process.port, seed=4700)
    with blocking.connect(network.url, retry_for=60) as client:
        feed = client.create_feed("orders", partitions=4)
        for batch in range(4):
            share = rows[batch::4]
            feed.publish("sink", batch, [staged(feed, share[part::2], batch_rows=20) for part in range(2)])
        network.cutting = False
    assert network.cuts > 5
    assert contents(node_process.url).history() == {key: [value] for key, value in rows}


def test_a_feed_that_was_made_again_fails_one_stage_at_most(feed, client, feed_name):
    feed.put(b"k", b"of the first feed")
    client.drop_feed(feed_name)
    client.create_feed(feed_name, partitions=4)
    with pytest.raises(tailrace.UnknownFeed):
        staged(feed, rows_of(0, 10))
    feed.publish("sink", 0, [staged(feed, rows_of(0, 10))])
    assert feed.get(b"k") is None
    assert feed.get(b"key-1").value == b"v"
