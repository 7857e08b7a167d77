from __future__ import annotations

import contextlib

import pytest

import tailrace
from tailrace import Delete, Put
from tailrace.block import encode_block
from tailrace.model.hashing import key_hash, partition_of_hash


def test_rows_are_written_in_order(feed, contents, shared_node):
    with feed.writer(batch_rows=7, in_flight_bytes=2000) as writer:
        for number in range(1000):
            writer.put(b"k%d" % (number % 10), b"%d" % number)
        for number in range(5):
            writer.delete(b"k%d" % number)
        writer.write([Put(b"k0", b"again"), Delete(b"k9")])
    found = contents(shared_node.url, feed.name)
    for key in range(10):
        wanted = [b"%d" % number for number in range(key, 1000, 10)]
        wanted += [None] if key < 5 or key == 9 else []
        wanted += [b"again"] if key == 0 else []
        assert found.history()[b"k%d" % key] == wanted


def test_flush_gives_the_versions_since_the_last_one(feed):
    with feed.writer() as writer:
        writer.put(b"a", b"1")
        writer.put(b"a", b"2")
        [first] = writer.flush().values()
        assert (first.first_seq, first.last_seq) == (1, 2)
        assert writer.flush() == {}
        writer.delete(b"a")
        [second] = writer.flush(timeout=10).values()
        assert (second.first_seq, second.last_seq) == (3, 3)


def test_batches_by_size(feed, contents, shared_node):
    with feed.writer(batch_bytes=1000) as writer:
        for number in range(100):
            writer.put(b"k", b"x" * (number + 1))
    sizes = [block.header.raw_bytes for block in contents(shared_node.url, feed.name).blocks]
    assert len(sizes) > 4
    assert all(1000 <= size < 3000 for size in sizes[:-1])


def test_blocks_of_ones_own(feed):
    partition = partition_of_hash(key_hash(b"k"), 4)
    with feed.writer() as writer:
        writer.send(encode_block([b"k", b"k"], [b"1", b"2"], partition=partition))
        [versions] = writer.flush().values()
    assert versions.last_seq == 2
    assert feed.get(b"k").value == b"2"


def test_error_of_the_node_is_raised_by_the_next_call_and_on_leaving(feed):
    wrong = (partition_of_hash(key_hash(b"k"), 4) + 1) % 4
    writer = feed.writer()
    with contextlib.suppress(tailrace.BadBlock):  # where the answer is there before send() returns
        writer.send(encode_block([b"k"], [b"1"], partition=wrong))
    put, delete = (lambda: writer.put(b"k", b"v")), (lambda: writer.delete(b"k"))
    for call in (writer.flush, put, delete, lambda: writer.write([]), lambda: writer.__exit__(None, None, None)):
        with pytest.raises(tailrace.BadBlock, match="outside of partition"):
            call()
    assert feed.get(b"k") is None


def test_exception_of_the_body_leaves_as_itself(feed):
    error = RuntimeError("of the body")

    def fail():
        with feed.writer() as writer:
            writer.put(b"dropped", b"v")
            raise error

    with pytest.raises(RuntimeError) as caught:
        fail()
    assert caught.value is error
    assert feed.get(b"dropped") is None


def test_bad_row_adds_nothing(feed):
    with feed.writer() as writer:
        writer.put(b"a", b"1")
        with pytest.raises(TypeError):
            writer.write([Put(b"b", b"1"), Put("c", b"1")])
        writer.put(b"d", b"1")
    assert [item is not None for item in feed.get_many([b"a", b"b", b"d"])] == [True, False, True]
