from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tailrace.demo.changes import TEXT_BYTES_MAX, Content, TreeEntry, encode_value, text_of


@pytest.mark.parametrize("content", [b"", b"plain\n", "Grüße 👋".encode(), b"\xef\xbb\xbfbom\r\n", b"\x01\x7f"])
def test_text(content):
    assert text_of(content) == content.decode()


@pytest.mark.parametrize("content", [b"\0", b"text\0", b"\xff", b"\xc3", b"\xed\xa0\x80", "Grüße".encode("latin-1")])
def test_no_text(content):
    assert text_of(content) is None


def test_long_text_is_cut_at_the_bound():
    assert text_of(b"x" * TEXT_BYTES_MAX + b"y") == "x" * TEXT_BYTES_MAX


def test_long_text_is_not_cut_within_a_character():
    text = text_of(b"x" * (TEXT_BYTES_MAX - 2) + "€".encode())
    assert text == "x" * (TEXT_BYTES_MAX - 2)


def test_what_is_no_text_at_its_very_end_is_no_text():
    assert text_of(b"x" * (2 * TEXT_BYTES_MAX) + b"\0") is None


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_value_is_json_with_the_documented_fields(text):
    value = encode_value(TreeEntry("100644", "ab" * 20), Content(7, text), "cd" * 20, 1_700_000_000)
    assert json.loads(value) == {
        "mode": "100644",
        "blob": "ab" * 20,
        "size": 7,
        "commit": "cd" * 20,
        "time": 1_700_000_000,
        "text": text,
    }
    assert b"\n" not in value
