from hypothesis import given
from hypothesis import strategies as st

from tailrace.block.found import FoundRow, row_of_key


@given(st.data(), st.booleans())
def test_each_row_is_found_under_its_key_and_no_other(history, make_block, data, compress):
    rows = data.draw(history)
    columns = make_block(rows, compress=compress).open_columns()
    for number, (key, value, seq, timestamp) in enumerate(rows):
        assert row_of_key(columns, number, key) == FoundRow(seq, timestamp, value)
        assert row_of_key(columns, number, key + b"x") is None
        assert row_of_key(columns, number, key[:-1]) is None
