"""The memory of decoded strings stays in the process from one block to the next."""

import subprocess
import sys

import pytest

from tailrace.block import arenas
from tailrace.block.arenas import ARENA_BYTES, ARENAS_MAX, SMALL_BYTES_MAX, STRING_BYTES, keep_arenas

# A consumer that drops each block's columns before the next ones. It prints the page faults of a block.
CONSUMER = """
import os, resource, sys
from tailrace.block import encode_block
from tailrace.block import arenas
if sys.argv[1] == "without":
    arenas._kept = type(arenas._kept)(maxlen=0)
rows = 30_000
block = encode_block([b"key-%012d" % row for row in range(rows)], [os.urandom(100) for _ in range(rows)], partition=0)
for turn in range(12):
    if turn == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block.open_columns().values()
    block.open_columns().keys()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10)
"""


@pytest.fixture(autouse=True)
def kept():
    arenas._kept.clear()
    yield arenas._kept
    arenas._kept.clear()


def faults(way):
    done = subprocess.run([sys.executable, "-c", CONSUMER, way], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="how memory is given back depends on the system")
def test_the_pages_of_a_block_serve_the_next_one():
    assert faults("with") < 50 < faults("without")


def test_a_few_strings_are_kept_of_a_column(kept):
    strings = [bytes(100)] * 10_000
    keep_arenas(strings, 1_000_000)
    assert len(kept) == -(-10_000 * (100 + STRING_BYTES) // (ARENA_BYTES // 2))


def test_one_string_is_kept_of_a_short_column(kept):
    keep_arenas([b"only"], 4)
    assert list(kept) == [b"only"]


def test_all_columns_together_are_bounded_and_the_oldest_go(kept):
    for number in range(3 * ARENAS_MAX):
        keep_arenas([b"%d" % number], 3)
    assert list(kept) == [b"%d" % number for number in range(2 * ARENAS_MAX, 3 * ARENAS_MAX)]


def test_strings_in_memory_of_their_own_are_not_kept(kept):
    keep_arenas([bytes(SMALL_BYTES_MAX)] * 5_000, 5_000 * SMALL_BYTES_MAX)
    assert not kept


def test_a_long_string_of_a_column_of_short_ones_is_not_kept(kept):
    strings = [bytes(1_000_000), *[b"short"] * 39_999]
    keep_arenas(strings, sum(map(len, strings)))
    assert set(kept) == {b"short"}


def test_neither_deleted_nor_empty_values_are_kept(kept):
    keep_arenas([None] * 2_500 + [b""] * 2_500, 0)
    assert not kept
