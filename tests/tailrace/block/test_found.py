from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import VALUE_BYTES_MAX, Stamps, encode_block
from tailrace.block.found import FoundRow, FoundRows, OpenRows, row_of_key
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
        before = found.room
        found.look([(OpenRows.of(block.header, raw), len(asked))], keys, asked)
        of_block = [row_of_key(block.header, raw, number, key) for number, key in zip(asked, keys, strict=True)]
        sizes = [len(row.value) if row and row.value else 0 for row in of_block]
        count = next((index for index in range(len(sizes)) if sum(sizes[: index + 1]) > before), len(sizes))
        assert found.room == before - sum(sizes[:count])
        alone += [row if index < count else None for index, row in enumerate(of_block)]
    assert all(type(value) in (bytes, type(None)) for value in found.values)
    assert found.alone == [index for index, row in enumerate(alone) if row is None]
    for row, *column in zip(alone, found.seqs, found.timestamps, found.values, strict=True):
        assert row is None or row == tuple(column)


EVEN = st.tuples(st.integers(1, 6), st.integers(0, 4)).flatmap(
    lambda widths: st.lists(
        st.tuples(*(st.binary(min_size=width, max_size=width) for width in widths))
        | st.tuples(st.binary(min_size=widths[0], max_size=widths[0]), st.none() | st.binary(max_size=9)),
        min_size=1,
        max_size=60,
    )
)


@given(st.data())
def test_rows_of_several_blocks_are_found_as_each_alone(history, make_block, data):
    """With few and with many rows of a block, of blocks that are even and others, measured and not; room for some."""
    blocks, first_seq = [], 1
    for rows in data.draw(st.lists(EVEN | history.map(lambda rows: [row[:2] for row in rows]), max_size=4)):
        keys, values = map(list, zip(*rows, strict=True))
        block = encode_block(keys, values, partition=0, compress=False).stamped(first_seq, 7)
        first_seq = block.header.last_seq + 1
        blocks.append((block, rows))
    asked = [  # of each block, the rows that are looked at
        sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1) | st.just(set(range(len(rows))))))
        for _, rows in blocks
    ]
    found, opened, seqs, keys, alone = FoundRows(data.draw(st.sampled_from([20, 10_000]))), [], [], [], []
    for (block, rows), numbers in zip(blocks, asked, strict=True):
        body = block.open_raw()
        forms = [body, memoryview(b"12345" + body + b"1")[5:-1], memoryview(bytearray(body))]
        raw = forms[data.draw(st.integers(0, 2))]
        of_block = OpenRows.of(block.header, raw)
        seqs += [block.header.first_seq + number for number in numbers]
        keys += [rows[number][0] + data.draw(st.sampled_from([b"", b"", b"", b"x"])) for number in numbers]
        alone += [row_of_key(block.header, raw, *at) for at in zip(numbers, keys[-len(numbers) :], strict=True)]
        opened.append((of_block.measured() if data.draw(st.booleans()) else of_block, len(seqs)))
    turns = data.draw(st.integers(1, 5))
    count = found.look(iter(opened), keys, seqs, iter([*[False] * (turns - 1), True]).__next__, by_seqs=True)
    assert count == (opened[min(turns, len(opened)) - 1][1] if opened else 0)
    assert found.seqs == seqs[:count]
    assert len(found.values) == len(found.timestamps) == count
    assert found.room >= 0
    assert found.room + sum(len(value) for value in found.values if value is not None) in (20, 10_000)
    for index, row in enumerate(alone[:count]):
        if index in found.alone:
            assert found.values[index] is None
            assert row is None or found.room < 20, "another key's, or without room"
        else:
            assert row == (found.seqs[index], found.timestamps[index], found.values[index])


def test_the_widths_of_a_block_are_known_when_it_was_measured():
    def widths(values, **columns):
        keys = columns.pop("keys", [b"%03d" % number for number in range(len(values))])
        block = encode_block(keys, values, partition=0, **columns)
        return OpenRows.of(block.header, block.open_raw()).measured()[-3:-1]

    assert widths([b"12"] * 9) == (3, 2)
    assert widths([b"12", b"3", b"456"]) == widths([b""] * 3) == widths([b"12", None]) == (3, 0)
    assert widths([b"12", b"34"], keys=[b"a", b"abc"]) == (0, 0)
    assert widths([b"12"] * 2, stamps=Stamps([3, 9], [4, 5])) == (0, 0)
    assert widths([b"12"] * 2, stamps=Stamps([3, 4], [4, 5])) == (3, 2)


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
    found.look([(OpenRows.of(block.header, raw), len(rows))], keys, list(range(len(rows))))
    assert found.values == values
