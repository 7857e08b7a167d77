"""What a message says of a process that has ended."""

from __future__ import annotations

from pyspark_tailrace.demo.failure import LOG_CHARACTERS, last_words


def test_last_words_are_whole_lines_of_the_end(tmp_path):
    log = tmp_path / "log"
    log.write_text("first\n" + "x" * LOG_CHARACTERS + "\nsecond to last\nlast\n\n")
    assert last_words(log) == "; the end of its log:\n  second to last\n  last"


def test_nothing_was_said(tmp_path):
    assert last_words(tmp_path / "missing") == ""
    (tmp_path / "empty").write_text("\n")
    assert last_words(tmp_path / "empty") == ""
