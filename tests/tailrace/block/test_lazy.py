from __future__ import annotations

import subprocess
import sys

import pytest

from tailrace.block import block_from_arrow, encode_block, lazy

pytestmark = pytest.mark.slow

ROUND_TRIP = """
import sys
{before}
from tailrace.block import Block, encode_block
import tailrace.consuming.events
assert not sys.modules.get("numpy") and not sys.modules.get("pyarrow")
keys, values = [b"%d" % i for i in range(300)], [b"v", None, b"ww"] * 100
columns = Block.parse(encode_block(keys, values, partition=0).tobytes()).columns()
assert columns.keys() == keys and columns.values() == values
"""


@pytest.mark.parametrize(
    "before",
    ["", "sys.modules['pyarrow'] = None", "sys.modules['pyarrow'] = sys.modules['numpy'] = None"],
    ids=["all", "without pyarrow", "without both"],
)
def test_what_is_not_installed_is_not_needed_and_what_is_comes_late(before):
    subprocess.run([sys.executable, "-c", ROUND_TRIP.format(before=before)], check=True)


INTERRUPTED = """
import sys
sys.path.insert(0, {folder!r})
from tailrace.block import Block, encode_block
columns = Block.parse(encode_block([b"%d" % i for i in range(300)], [b"v"] * 300, partition=0).tobytes()).columns()
for part in ({calls}):
    try:
        part()
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.parametrize(
    ("calls", "needs_pandas"),
    [("columns.values,", not lazy._has_fast_lists()), ("columns.values, columns.key_array, columns.to_arrow", True)],
)
def test_an_interrupt_while_pyarrow_needs_pandas_is_not_lost(tmp_path, calls, needs_pandas):
    """pyarrow imports pandas at its first array, and drops any error of that."""
    (tmp_path / "pandas.py").write_text("print('imports'); raise KeyboardInterrupt")
    code = INTERRUPTED.format(folder=str(tmp_path), calls=calls)
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.count("imports") == ran.stdout.count("interrupted")
    assert ("interrupted" in ran.stdout) == needs_pandas


def test_the_strings_of_every_version_of_pyarrow(monkeypatch):
    pa = lazy.pyarrow()
    array = pa.array([b"a", None, b""], pa.binary())
    for is_fast in (True, False):
        monkeypatch.setattr(lazy, "_has_fast_lists", lambda is_fast=is_fast: is_fast)
        assert lazy.strings_of(array) == [b"a", None, b""]


def test_arrow_without_pyarrow_says_what_to_install(monkeypatch):
    monkeypatch.setattr(lazy, "pyarrow_or_none", lambda: None)
    columns = encode_block([b"k"], [b"v"], partition=0).columns()
    with pytest.raises(ImportError, match=r"tailrace\[arrow\]"):
        columns.key_array()
    with pytest.raises(ImportError, match=r"tailrace\[arrow\]"):
        columns.to_arrow()
    with pytest.raises(ImportError, match=r"tailrace\[arrow\]"):
        block_from_arrow([b"k"], [b"v"], partition=0)
