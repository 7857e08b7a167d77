from __future__ import annotations

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.directory.sealed import UnknownVersion, seal, unseal

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
NAMES = st.text(max_size=10).filter(lambda name: name not in ("format", "version"))


def with_checksum(text):
    return b"%s\n%016x\n" % (text, xxhash.xxh3_64_intdigest(text))


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_what_was_sealed_comes_back(members):
    data = seal("a thing", 3, members)
    assert unseal(data, "a thing", 3) == members
    assert data.count(b"\n") == 2
    assert data.isascii()


@given(st.binary(max_size=100))
def test_anything_else_is_refused(data):
    with pytest.raises(ValueError, match="its checksum is wrong"):
        unseal(data, "a thing", 1)


def test_every_bit_counts():
    data = seal("a thing", 1, {"a": 1})
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(ValueError, match="its checksum is wrong"):
            unseal(bytes(changed), "a thing", 1)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000, b'{"a":' + b"1" * 5_000 + b"}"])
def test_a_good_checksum_over_no_json(text):
    with pytest.raises(ValueError, match="it is no JSON"):
        unseal(with_checksum(text), "a thing", 1)


@pytest.mark.parametrize("text", [b"[]", b"1", b"{}", b'{"format":"another","version":1}', b'{"version":1}'])
def test_another_format(text):
    with pytest.raises(ValueError, match="it is no 'a thing'"):
        unseal(with_checksum(text), "a thing", 1)


@pytest.mark.parametrize("version", [2, None, "1", [1]])
def test_another_version_is_named(version):
    with pytest.raises(UnknownVersion, match="known is 1"):
        unseal(seal("a thing", version, {}), "a thing", 1)
