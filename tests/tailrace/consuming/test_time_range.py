"""The rows of a block that lie between two times."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import encode_block
from tailrace.block.encode import Stamps
from tailrace.consuming.events import Mutations
from tailrace.consuming.time_range import TimeRange

TIMES = st.none() | st.integers(0, 12)


@given(st.lists(st.integers(1, 10), min_size=1, max_size=8).map(sorted), TIMES, TIMES)
def test_rows_in_time_are_kept_and_the_first_late_row_says_that_time_is_up(timestamps, since_us, until_us):
    """Seqs are even, so that a position of no row would be seen."""
    seqs = [10 + 2 * index for index in range(len(timestamps))]
    keys = [b"%d" % seq for seq in seqs]
    block = encode_block(keys, [b"v"] * len(keys), partition=0, stamps=Stamps(seqs, timestamps))
    rows, last_seq, is_past = TimeRange(since_us, until_us).cut(Mutations(block), 7)
    early_enough = [seq for seq, time in zip(seqs, timestamps, strict=True) if until_us is None or time < until_us]
    late_enough = [seq for seq, time in zip(seqs, timestamps, strict=True) if since_us is None or time >= since_us]
    assert (list(rows.seqs()) if rows else []) == sorted(set(early_enough) & set(late_enough))
    assert is_past == (early_enough != seqs)
    assert last_seq == (early_enough[-1] if early_enough else 7)
