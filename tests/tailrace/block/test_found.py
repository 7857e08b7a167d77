from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import VALUE_BYTES_MAX, encode_block
from tailrace.block.found import FoundRow, row_of_key, rows_of_keys
from tailrace.block.layout import column_begins, read_layout


@given(st.data(), st.booleans())
def test_each_row_is_found_under_its_key_and_no_other(history, make_block, data, compress):
    rows = data.draw(history)
    columns = make_block(rows, compress=compress).open_columns()
    for number, (key, value, seq, timestamp) in enumerate(rows):
        assert row_of_key(columns, number, key) == FoundRow(seq, timestamp, value)
        assert row_of_key(columns, number, key + b"x") is None
        assert row_of_key(columns, number, key[:-1]) is None


@given(st.data(), st.booleans())
def test_several_rows_are_found_as_each_alone(history, make_block, data, compress):
    rows = data.draw(history)
    block = make_block(rows, compress=compress)
    columns, raw = block.open_columns(), block.open_raw()
    asked = data.draw(st.lists(st.integers(0, len(rows) - 1)))
    keys = [rows[number][0] + data.draw(st.sampled_from([b"", b"", b"x"])) for number in asked]
    alone = [row_of_key(columns, number, key) for number, key in zip(asked, keys, strict=True)]
    assert rows_of_keys(block.header, raw, asked, keys, VALUE_BYTES_MAX) == alone
    room = data.draw(st.integers(0, 50))
    found = rows_of_keys(block.header, raw, asked, keys, room)
    assert found == alone[: len(found)]
    sizes = [len(row.value) if row and row.value else 0 for row in alone]
    assert sum(sizes[: len(found)]) <= room
    assert len(found) == len(alone) or sum(sizes[: len(found) + 1]) > room


@given(st.data())
def test_columns_begin_as_in_the_layout(history, make_block, data):
    block = make_block(data.draw(history), compress=False)
    layout, begins = read_layout(block.header, memoryview(block.body)), column_begins(block.header, block.body)
    for name, begin in begins._asdict().items():
        extent = getattr(layout, name)
        assert begin == (-1 if extent is None else extent.start)


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.binary(max_size=30), st.integers(0, 9)), min_size=1))
def test_the_begins_of_columns_of_a_block_with_ttls(rows):
    keys, values, ttls = map(list, zip(*rows, strict=True))
    block = encode_block(keys, values, partition=3, ttls=ttls)
    raw = block.open_raw()
    assert column_begins(block.header, raw).value_data == read_layout(block.header, memoryview(raw)).value_data.start
    found = rows_of_keys(block.header, raw, range(len(rows)), keys, VALUE_BYTES_MAX)
    assert [row.value for row in found] == values
