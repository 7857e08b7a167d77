from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import VALUE_BYTES_MAX, encode_block
from tailrace.block.found import FoundRow, FoundRows, row_of_key
from tailrace.block.layout import column_begins, read_layout


@given(st.data(), st.booleans())
def test_each_row_is_found_under_its_key_and_no_other(history, make_block, data, compress):
    rows = data.draw(history)
    block = make_block(rows, compress=compress)
    raw = data.draw(st.sampled_from([bytes, memoryview]))(block.open_raw())
    for number, (key, value, seq, timestamp) in enumerate(rows):
        assert row_of_key(block.header, raw, number, key) == FoundRow(seq, timestamp, value)
        assert row_of_key(block.header, raw, number, key + b"x") is None
        assert row_of_key(block.header, raw, number, key[:-1]) is None


@given(st.data(), st.booleans())
def test_several_rows_are_found_as_each_alone(history, make_block, data, compress):
    """Those of two blocks, one after the other, with room for some of their values."""
    room = data.draw(st.sampled_from([10, 50, VALUE_BYTES_MAX]))
    found, alone = FoundRows(room), []
    for _ in range(2):
        rows = data.draw(history)
        block = make_block(rows, compress=compress)
        raw = data.draw(st.sampled_from([bytes, memoryview]))(block.open_raw())
        asked = data.draw(st.lists(st.integers(0, len(rows) - 1)))
        keys = [rows[number][0] + data.draw(st.sampled_from([b"", b"", b"x"])) for number in asked]
        before, seqs = found.room, data.draw(st.sampled_from([None, [rows[number][2] for number in asked]]))
        found.look(block.header, raw, asked, keys, seqs)
        of_block = [row_of_key(block.header, raw, number, key) for number, key in zip(asked, keys, strict=True)]
        sizes = [len(row.value) if row and row.value else 0 for row in of_block]
        count = next((index for index in range(len(sizes)) if sum(sizes[: index + 1]) > before), len(sizes))
        assert found.room == before - sum(sizes[:count])
        alone += [row if index < count else None for index, row in enumerate(of_block)]
    assert all(type(value) in (bytes, type(None)) for value in found.values)
    assert found.alone == [index for index, row in enumerate(alone) if row is None]
    for row, *column in zip(alone, found.seqs, found.timestamps, found.values, strict=True):
        assert row is None or row == tuple(column)


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
    found = FoundRows(VALUE_BYTES_MAX)
    found.look(block.header, raw, range(len(rows)), keys)
    assert found.values == values
