from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace.block import Block
from tailrace.block.header import BlockHeader
from tailrace_server.blocks import heads_of


def numbers(bits):
    return st.integers(0, 2**bits - 1)


# In the order of BlockHeader's fields.
headers = st.builds(
    BlockHeader,
    *map(numbers, (16, 32, 32, 64, 64, 64, 64, 32, 32, 32, 64, 64, 64)),
)


@settings(max_examples=examples(100))
@given(st.lists(headers, max_size=5))
def test_every_field_is_that_of_the_header(given_headers):
    heads = heads_of([Block(header, header.pack(), b"") for header in given_headers])
    assert len(heads) == len(given_headers)
    for name in BlockHeader._fields:
        assert heads[name].tolist() == [getattr(header, name) for header in given_headers]
