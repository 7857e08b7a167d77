import gc
import tracemalloc

import pytest

from tailrace.block import Block, encode_block
from tailrace_server.tree.memory import HEADER_OBJECT_BYTES, memory_of, memory_of_all

COUNT = 2_000


def stamped(number):
    keys, values = [b"k%015d" % number], [b"v" * 100]
    block = encode_block(keys, values, partition=0, producer_id=2**63 + 5, producer_seq=number + 1000)
    return block.stamped(10**6 + number, 1_700_000_000_000_000 + number)


def with_own_body(number):
    block = stamped(number)
    return Block(block.header, block.head, bytes(block.body))


def with_a_view(number):
    return Block.parse(memoryview(stamped(number).tobytes()))


def without_header(number):
    block = with_own_body(number)
    block.forget_header()
    return block


@pytest.mark.slow
@pytest.mark.parametrize("make", [with_own_body, with_a_view, without_header])
def test_the_constants_are_as_measured(make):
    """Within a quarter: other versions of Python have objects of other sizes."""
    made = [None] * COUNT
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(COUNT):
            made[number] = make(number)
        gc.collect()
        measured = (tracemalloc.get_traced_memory()[0] - before) / COUNT
    finally:
        tracemalloc.stop()
    told = memory_of_all(made) / COUNT - (HEADER_OBJECT_BYTES if make is without_header else 0)
    assert 0.75 * measured <= told <= 1.25 * measured


def test_a_buffer_that_neighbours_share_counts_once():
    blocks = [stamped(number) for number in range(3)]
    buffer = memoryview(b"x" * 100 + b"".join(block.tobytes() for block in blocks))
    views = [Block.parse_at(buffer, 100 + index * blocks[0].nbytes) for index in range(3)]
    alone = memory_of(views[0])
    sharing = memory_of(views[1], views[0])
    assert alone - sharing == buffer.nbytes
    assert memory_of_all(views) == alone + 2 * sharing
    assert memory_of_all([]) == 0
    assert memory_of(views[0], blocks[0]) == alone
    assert memory_of(Block.parse(views[0].tobytes()), views[0]) < alone
