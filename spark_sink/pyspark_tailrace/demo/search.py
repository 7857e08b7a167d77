"""Runs a full-text query of the index, with a word that one of its texts has."""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

# Shorter words are in every text of some languages.
WORD_CHARACTERS_MIN = 6
WORD = re.compile(rf"[A-Za-z]{{{WORD_CHARACTERS_MIN},}}")
HITS_SHOWN = 5
SNIPPET_WORDS = 8

# A text that people read first, or any other.
FIND_TEXT = (
    "SELECT text FROM items WHERE text IS NOT NULL "
    "ORDER BY lower(CAST(key AS TEXT)) NOT LIKE 'readme%', rowid LIMIT :count"
)
TEXTS_TRIED = 100

COUNT = "SELECT count(*) FROM items_fts WHERE items_fts MATCH :word"
SEARCH = (
    f"SELECT items.key, snippet(items_fts, 0, '[', ']', '...', {SNIPPET_WORDS}) "
    "FROM items_fts JOIN items ON items.rowid = items_fts.rowid "
    "WHERE items_fts MATCH :word ORDER BY rank LIMIT :count"
)


class Hit(NamedTuple):
    """A path whose text has the word, and the words around it."""

    path: bytes
    snippet: str


class Search(NamedTuple):
    """A query and its result: the number of ``paths`` with the word, and the best of them as ``hits``."""

    word: str
    paths: int
    seconds: float
    hits: list[Hit]


def search_index(path: Path) -> Search | None:
    """Searches the index for a word of one of its texts. Returns None if no text has a word."""
    with closing(sqlite3.connect(path)) as connection:
        word = _pick(connection)
        if word is None:
            return None
        started = time.perf_counter()
        (paths,) = connection.execute(COUNT, {"word": word}).fetchone()
        rows = connection.execute(SEARCH, {"word": word, "count": HITS_SHOWN}).fetchall()
        seconds = time.perf_counter() - started
        return Search(word, paths, seconds, [Hit(key, snippet) for key, snippet in rows])


def _pick(connection: sqlite3.Connection) -> str | None:
    for (text,) in connection.execute(FIND_TEXT, {"count": TEXTS_TRIED}):
        word = frequent_word(text)
        if word is not None:
            return word
    return None


def frequent_word(text: str) -> str | None:
    """Returns the most frequent word of six or more plain letters, in lower case, or None if there is no such word.

    >>> frequent_word("Barriers and barriers: a consistent point")
    'barriers'
    """
    # Only whole words, because the tokenizer of FTS5 joins letters of any alphabet, digits and marks.
    words = Counter(word.lower() for word in re.findall(r"\w+", text) if WORD.fullmatch(word))
    return min(words, key=lambda word: (-words[word], word)) if words else None
