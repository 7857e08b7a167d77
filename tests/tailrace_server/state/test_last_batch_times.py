"""The time of a sink's last batch: that of its publish, also after a rollback, a restart, and beside other writers."""

from __future__ import annotations

import pytest
from tests.tailrace_server.made_directory import MadeDirectory
from tests.tailrace_server.publishing.blocks import block

from tailrace_server.partition.published import note_sinks
from tailrace_server.partition.published import publish as publish_blocks
from tailrace_server.state.last_batches import LastBatch, LastBatches, PartMark, PublishedAt, newer

ONE, TWO, THREE = (LastBatch(number, "o", 10 * number) for number in (1, 2, 3))


def told(*lasts):
    """The last batches of one sink, each published a second after its number."""
    table = LastBatches()
    for last in lasts:
        table.tell({"a": last}, lambda seq: seq * 100_000)
    return table


def times(table):
    return dict(table.published())


def test_a_batch_has_the_time_of_its_publish():
    assert times(told(ONE, TWO)) == {"a": PublishedAt(2, 2_000_000)}


def test_a_batch_that_is_told_again_keeps_its_time():
    table = told(ONE, TWO)
    table.tell({"a": TWO}, lambda _: 9_000_000)
    assert times(table) == {"a": PublishedAt(2, 2_000_000)}


def test_a_rollback_brings_back_the_time_of_the_batch_before():
    table = told(ONE, TWO, THREE)
    table.flushed(5)
    table.forget_above(25)
    assert times(table) == {"a": PublishedAt(2, 2_000_000)}


def test_a_rollback_between_two_parts_keeps_the_time_of_the_batch():
    table = told(ONE._replace(parts=(PartMark(4, 7), PartMark(10, 9))))
    table.forget_above(5)
    assert table.find("a").seq == 4
    assert times(table) == {"a": PublishedAt(1, 1_000_000)}


def test_the_newest_batch_counts_over_partitions_and_not_the_latest_time():
    assert newer(PublishedAt(2, 7), None) == PublishedAt(2, 7)
    assert newer(PublishedAt(2, 7), PublishedAt(1, 9)) == PublishedAt(2, 7)
    assert newer(PublishedAt(2, 7), PublishedAt(2, 9)) == PublishedAt(2, 9)


class World:
    """A partition to which a sink and another writer write, a second apart."""

    def __init__(self):
        self.made = MadeDirectory()
        self.made.create("orders", 1)
        self.clock = self.made.host.clock

    @property
    def partition(self):
        return self.made.node.feeds.named("orders").partitions[0]

    @property
    def time_us(self):
        return dict(self.partition.sinks.published())["query"].time_us

    def publish(self, sink, batch):
        """Publishes a batch, and returns its time."""
        self.clock.advance(1.0)
        now_us = self.clock.wall_us()
        publish_blocks(self.partition, [block()], sink, batch, "o", self.made.node.storage.journal, now_us=now_us)
        self.made.node.storage.journal.sync()
        self.partition.durable_through(self.partition.high_seq)
        return now_us

    def restart(self):
        self.made.stop()
        self.made.start()


@pytest.fixture
def world():
    return World()


def test_a_start_finds_the_time_of_a_batch_in_the_journal(world):
    at_us = world.publish("query", 1)
    world.publish("other", 1)
    assert world.time_us == at_us
    world.restart()
    assert world.partition.flushed_seq == 0
    assert world.time_us == at_us


def test_a_start_tells_the_end_of_the_segment_if_the_batch_is_in_one(world):
    """No file has the time of a batch. The newest row of its segment is a bound that does not move on."""
    world.publish("query", 1)
    latest_us = world.publish("other", 1)
    world.made.flush_and_trim("orders")
    for batch in (2, 3):
        world.publish("other", batch)
        world.made.flush_and_trim("orders")
    world.restart()
    assert world.time_us == latest_us
    world.publish("other", 4)
    assert world.time_us == latest_us
    assert world.publish("query", 2) == world.time_us


def test_a_last_batch_that_comes_after_its_rows_has_the_time_of_the_newest_row(world):
    """A replica gets it so: the rows of a snapshot first, then the table as of its end."""
    at_us = world.publish("other", 1)
    note_sinks(world.partition, {"query": LastBatch(1, "o", world.partition.high_seq)}, world.made.node.storage.journal)
    assert world.time_us == at_us
    world.publish("other", 2)
    assert world.time_us == at_us
