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


def test_arrow_without_pyarrow_says_what_to_install(monkeypatch):
    monkeypatch.setattr(lazy, "pyarrow_or_none", lambda: None)
    columns = encode_block([b"k"], [b"v"], partition=0).columns()
    with pytest.raises(ImportError, match=r"tailrace\[arrow\]"):
        columns.key_array()
    with pytest.raises(ImportError, match=r"tailrace\[arrow\]"):
        columns.to_arrow()
    with pytest.raises(ImportError, match=r"tailrace\[arrow\]"):
        block_from_arrow([b"k"], [b"v"], partition=0)
