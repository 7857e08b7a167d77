from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import KEY_BYTES_MAX, VALUE_BYTES_MAX
from tailrace.requests.plain_rows import ROW_BYTES, PlainRows


class Odd(bytes):
    pass


strings = st.binary(max_size=12) | st.builds(Odd, st.binary(max_size=12)) | st.none() | st.text(max_size=3)
rows = st.lists(st.tuples(strings | st.just(bytes(KEY_BYTES_MAX + 1)), strings | st.builds(bytearray, st.binary())))


@given(rows, st.integers(1, 300), st.integers(0, 3), st.lists(st.booleans(), min_size=1))
def test_plain_rows_are_added_while_the_budget_lasts(made, budget, before, counts):
    keys, values = [b"before"] * before, [b"before"] * before
    plain, expected, counted, taken = PlainRows(keys, values, budget), [], 0, 0
    for number, (key, value) in enumerate(made):
        fits = type(key) is type(value) is bytes and 1 <= len(key) <= KEY_BYTES_MAX
        cost = len(key) + len(value) + ROW_BYTES if fits else 0
        fits = fits and cost <= budget - taken
        assert plain.add(key, value) is fits
        if fits:
            expected.append((key, value))
            taken += cost
        if counts[number % len(counts)]:
            rows, nbytes = plain.count()
            counted += rows
            assert nbytes >= rows * (ROW_BYTES + 1)
            assert counted == len(expected)
    rows, _ = plain.count()
    assert counted + rows == len(expected)
    assert list(zip(keys, values, strict=True))[before:] == expected
    assert plain.count() == (0, 0)


def test_no_budget_permits_a_value_that_is_too_long():
    plain = PlainRows([], [], VALUE_BYTES_MAX)
    assert not plain.add(b"k", bytes(VALUE_BYTES_MAX))
    assert plain.add(b"k", bytes(VALUE_BYTES_MAX - 1 - ROW_BYTES))
