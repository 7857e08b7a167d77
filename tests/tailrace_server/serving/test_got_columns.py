from hypothesis import given
from hypothesis import strategies as st

from tailrace.model import Version
from tailrace.wire.messages import Got
from tailrace_server.serving.got_columns import GotColumns

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
VERSIONS = st.builds(Version, st.integers(0, 3) | U32, st.sampled_from([b"u" * 16, b"v" * 16]), U64)
ITEMS = st.lists(st.none() | st.tuples(VERSIONS, U64, st.binary(max_size=9)), min_size=1, max_size=20)


@given(ITEMS, st.data())
def test_an_answer_is_encoded_as_by_got(items, data):
    """In whatever order its rows are found, and if only the first ones are answered."""
    columns, left = GotColumns(len(items)), data.draw(st.permutations(range(len(items))))
    while left:
        number = left[0]
        if items[number] is None:
            together = [number]
            columns.values[number] = b""
        else:
            partition = items[number][0].partition
            together = [at for at in left if items[at] is not None and items[at][0].partition == partition]
            together = together[: data.draw(st.integers(1, 4))]
            versions, timestamps, values = zip(*(items[at] for at in together), strict=True)
            for at, value in zip(together, values, strict=True):
                columns.values[at] = value
            columns.add(together, partition, [(v.branch, 1) for v in versions], [v.seq for v in versions], timestamps)
        left = [at for at in left if at not in together]
    count = data.draw(st.integers(1, len(items)))
    assert columns.encode(count, 7) == Got(items[:count]).encode(7)


def test_an_answer_without_rows():
    columns = GotColumns(3)
    columns.values[:] = [b""] * 3
    assert columns.encode(3, 1) == Got([None] * 3).encode(1)
