from __future__ import annotations

import pytest
import xxhash
from hypothesis import strategies as st
from tests.block_fixtures import history, make_block, split

from tailrace.block import Block, BlockHeader, encode_block, lazy

__all__ = ["history", "make_block", "split"]


@pytest.fixture
def forge():
    """Makes the bytes of a block whose checksums are right, whatever its body and its header say."""

    def make(block: Block, body: bytes | None = None, **fields: int) -> bytes:
        stored = bytes(block.body) if body is None else body
        known: dict[str, int] = {"body_sum": xxhash.xxh3_64_intdigest(stored), "stored_bytes": len(stored)}
        if not fields.get("flags", block.header.flags) & 1:
            known["raw_bytes"] = len(stored)
        header: BlockHeader = block.header._replace(**(known | fields))
        return header.pack() + stored

    return make


@pytest.fixture
def row_lists():
    """A strategy of non-empty lists of (key, value or None), short and long enough for each way of decoding."""
    keys = st.binary(min_size=1, max_size=12)
    rows = st.tuples(keys, st.none() | st.binary(max_size=20))
    same = st.tuples(st.binary(min_size=8, max_size=8), st.binary(min_size=4, max_size=4))
    long = st.integers(30, 150).flatmap(lambda n: st.lists(rows, min_size=n, max_size=n))
    return st.lists(rows, min_size=1, max_size=12) | st.lists(same, min_size=1, max_size=90) | long


@pytest.fixture
def encode_rows():
    """Makes a block of a list of (key, value or None)."""

    def encode(rows: list[tuple[bytes, bytes | None]], **options: object) -> Block:
        keys, values = zip(*rows, strict=True)
        return encode_block(keys, values, **({"partition": 7} | options))

    return encode


@pytest.fixture(params=["pyarrow", "numpy", "neither"])
def installed(request, monkeypatch):
    """Runs a test with pyarrow and numpy, with numpy alone, and with neither."""
    missing = {"pyarrow": [], "numpy": ["pyarrow"], "neither": ["pyarrow", "numpy"]}[request.param]
    find = lazy._import_or_none
    monkeypatch.setattr(lazy, "_import_or_none", lambda name: None if name in missing else find(name))
    lazy.numpy_or_none.cache_clear()
    lazy.pyarrow_or_none.cache_clear()
    yield request.param
    lazy.numpy_or_none.cache_clear()
    lazy.pyarrow_or_none.cache_clear()
