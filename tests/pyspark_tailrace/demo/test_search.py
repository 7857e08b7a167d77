"""The sample query: a word of the index that is found in it."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tailrace.demo.run import COLUMNS, FULL_TEXT
from pyspark_tailrace.demo.search import frequent_word, search_index
from tailrace.indexes import AppliedMutation, SQLiteIndex
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.model.position import Positions


@pytest.fixture
def make_index(tmp_path):
    def make(texts):
        index = SQLiteIndex(tmp_path / "index.db", columns=COLUMNS, full_text=FULL_TEXT)
        index.open()
        rows = [
            AppliedMutation(0, key, json.dumps({"text": text}).encode(), seq, 0)
            for seq, (key, text) in enumerate(texts.items(), start=1)
        ]
        index.apply(rows, Checkpoint(Positions(b"c" * 16, b"f" * 16, {})))
        index.close()
        return index.path

    return make


def test_word_of_a_readme_is_searched_in_all_texts(make_index):
    found = search_index(
        make_index({b"a.txt": "Barriers, and more", b"doc/x": "nothing", b"README.md": "barriers\n\tbarriers unique"})
    )
    assert (found.word, found.paths) == ("barriers", 2)
    assert {hit.path for hit in found.hits} == {b"a.txt", b"README.md"}
    assert all("[" in hit.snippet for hit in found.hits)
    assert found.seconds > 0


@pytest.mark.parametrize("texts", [{}, {b"a": None}, {b"a": "short of it 1234567 größere"}])
def test_no_word_no_query(make_index, texts):
    assert search_index(make_index(texts)) is None


@given(st.text())
def test_frequent_word_is_a_whole_word_of_the_text(text):
    word = frequent_word(text)
    if word is not None:
        assert word in re.findall(r"\w+", text.lower())
        assert re.fullmatch("[a-z]{6,}", word)


def test_most_frequent_word_wins_then_the_alphabet():
    assert frequent_word("second Second first_thing another") == "second"
    assert frequent_word("zebras apples") == "apples"
