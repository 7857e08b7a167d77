"""The prose is plain English: markers of the old manner, per 1,000 words, stay below a limit for each package.

A marker alone proves nothing ("what to do" is fine); many of them show that a text has riddles in place of names. Prose
is docstrings, comments and pages. Texts are the strings of at least three words that are left: errors, help, log lines
and what commands print. Limits only go down: if a change brings a figure well below its limit, lower the limit, too.

    python -m tests.test_prose [PATH ...]    the figures of files or folders, and each place that has a marker
"""

from __future__ import annotations

import ast
import functools
import inspect
import io
import re
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "client_sdk": ROOT / "client_sdk" / "tailrace",
    "server": ROOT / "server" / "tailrace_server",
    "spark_sink": ROOT / "spark_sink" / "pyspark_tailrace",
}
MARKERS = {
    # Riddles: "what is kept", "what the node has", in place of a noun that names it.
    "riddle": r"what (?:is|was|has|had|they|it|a|the|others|nobody|of|does)",
    # "where" in place of "if" or "when".
    "where-if": r"where (?:there|it|one|a|the|that|they|nothing|nobody|this|what)",
    "nobody": r"(?:nobody|somebody|whoever)",
    "so-much": r"(?:so (?:many|much|long|far|late|old|little)|(?-i:is none|are none|is no more))",
}
PATTERNS = {name: re.compile(rf"\b{text}\b".replace(" ", r"\s+"), re.IGNORECASE) for name, text in MARKERS.items()}

# Markers per 1,000 words: of the prose, and of the texts. The aim is 2.0.
LIMITS = {"client_sdk": (2.0, 2.0), "server": (2.0, 2.0), "spark_sink": (2.0, 2.0)}
PAGES_LIMIT = 2.0
GUIDE_LIMIT = 4.0
PAGES = ["docs", "README.md", "CONTRIBUTING.md"]

SENTENCE_WORDS_MAX = 25
# The share of longer sentences among those of the docstrings, in percent.
LONG_SENTENCES_LIMITS = {"client_sdk": 1.6, "server": 2.5, "spark_sink": 1.5}

FIRST_LINE_MAX = 120
WRONG_FIRST_LINES_LIMITS = {"client_sdk": 7, "server": 3, "spark_sink": 0}

# A string of fewer words is a name, a key or a format.
TEXT_WORDS_MIN = 3
WORST_SHOWN = 10


class Passage(NamedTuple):
    """A piece of a file that people read, and the line at which it begins."""

    path: Path
    line: int
    text: str
    public: bool = True

    def __str__(self):
        return f"{self.path.relative_to(ROOT)}:{self.line}"


class Marked(NamedTuple):
    """A place that has a marker."""

    path: Path
    line: int
    marker: str
    text: str

    def __str__(self):
        return f"{self.path.relative_to(ROOT)}:{self.line}: [{self.marker}] {self.text}"


def documented(nodes):
    return [
        node
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False)
    ]


def docstrings(path, nodes):
    for node in documented(nodes):
        public = not getattr(node, "name", "").startswith("_")
        yield Passage(path, node.body[0].lineno, ast.get_docstring(node, clean=False), public)


def comments(path, source):
    """The comments, those on lines that follow each other as one."""
    begun, last = None, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        text = token.string.lstrip("#: ")
        if begun and token.start[0] == last + 1:
            begun = begun._replace(text=f"{begun.text}\n{text}")
        else:
            if begun:
                yield begun
            begun = Passage(path, token.start[0], text)
        last = token.start[0]
    if begun:
        yield begun


def texts(path, nodes):
    """The strings of several words that are no docstrings."""
    passed_over = {id(node.body[0].value) for node in documented(nodes)}
    for node in nodes:  # a node comes before its parts
        if id(node) in passed_over:
            continue
        if isinstance(node, ast.JoinedStr):
            # Strings inside a value of an f-string are found by themselves.
            passed_over.update(id(part) for part in node.values if isinstance(part, ast.Constant))
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if len(text.split()) >= TEXT_WORDS_MIN:
            yield Passage(path, node.lineno, text)


def page(path, text):
    """A page without its fenced and indented blocks; lines keep their numbers."""
    for block in (r"^ *```[\s\S]*?^ *```$", r"^ {4}.*$"):
        text = re.sub(block, lambda match: "\n" * match[0].count("\n"), text, flags=re.MULTILINE)
    return Passage(path, 1, text)


class Sources(NamedTuple):
    """The passages of a folder's modules."""

    docstrings: list[Passage]
    comments: list[Passage]
    texts: list[Passage]

    @property
    def prose(self):
        return self.docstrings + self.comments


def read(source, path=ROOT / "made.py"):
    nodes = list(ast.walk(ast.parse(source)))
    return Sources(list(docstrings(path, nodes)), list(comments(path, source)), list(texts(path, nodes)))


@functools.cache
def sources(folder):
    found = Sources([], [], [])
    for path in [folder] if folder.is_file() else sorted(folder.rglob("*.py")):
        for passages, more in zip(found, read(path.read_text(), path), strict=True):
            passages.extend(more)
    return found


def pages(path):
    return [page(file, file.read_text()) for file in ([path] if path.is_file() else sorted(path.rglob("*.md")))]


def marked(passages):
    """The places with markers, one for each marker."""
    for passage in passages:
        for marker, pattern in PATTERNS.items():
            for match in pattern.finditer(passage.text):
                before = passage.text.count("\n", 0, match.start())
                line = passage.text.splitlines()[before]
                yield Marked(passage.path, passage.line + before, marker, line.strip())


def rate(passages):
    """Markers per 1,000 words."""
    words = sum(len(passage.text.split()) for passage in passages)
    return 1000 * len(list(marked(passages))) / max(words, 1)


def worst(passages):
    """The places of the files that have the most markers, as lines."""
    by_file = {}
    for place in marked(passages):
        by_file.setdefault(place.path, []).append(place)
    ordered = sorted(by_file.values(), key=len, reverse=True)
    return "\n".join(str(place) for place in [place for places in ordered for place in places][:WORST_SHOWN])


def check(name, passages, limit):
    passages = list(passages)
    found = rate(passages)
    assert found <= limit, f"{name}: {found:.1f} markers per 1,000 words, {limit} are permitted:\n{worst(passages)}"


def sentences(docstring):
    """The sentences of a docstring: without headings of sections, examples and tables."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        if re.match(r"\s{4}|>>>|\||={3}", paragraph):
            continue
        items = re.split(r"^(?:\w+:$|\s*[-*] |\s+\w+: )", paragraph, flags=re.MULTILINE)
        for item in items:
            yield from (text for text in re.split(r"(?<=[.?!])\s+", " ".join(item.split())) if text)


def long_sentences(passages):
    """(the share of sentences that are too long, in percent, the passages and their sentences)."""
    found = [(passage, text) for passage in passages for text in sentences(passage.text)]
    long = [(passage, text) for passage, text in found if len(text.split()) > SENTENCE_WORDS_MAX]
    return 100 * len(long) / max(len(found), 1), long


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.slow
def test_docstrings_and_comments_stay_below_a_limit(package):
    check(package, sources(PACKAGES[package]).prose, LIMITS[package][0])


@pytest.mark.parametrize("package", PACKAGES)
def test_errors_help_and_log_lines_stay_below_a_limit(package):
    check(package, sources(PACKAGES[package]).texts, LIMITS[package][1])


@pytest.mark.parametrize("name", PAGES)
def test_pages_stay_below_a_limit(name):
    check(name, pages(ROOT / name), PAGES_LIMIT)


@pytest.mark.parametrize("guide", sorted((ROOT / "docs" / "guides").glob("*.md")), ids=lambda guide: guide.stem)
def test_each_guide_stays_below_a_limit_of_its_own(guide):
    check(guide.name, pages(guide), GUIDE_LIMIT)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.slow
def test_the_share_of_long_sentences_falls(package):
    share, long = long_sentences(sources(PACKAGES[package]).docstrings)
    longest = sorted(long, key=lambda found: len(found[1].split()), reverse=True)[:WORST_SHOWN]
    places = "\n".join(f"{passage}: {len(text.split())} words" for passage, text in longest)
    limit = LONG_SENTENCES_LIMITS[package]
    assert share <= limit, f"{package}: {share:.1f} % of the sentences are too long, {limit} % are permitted:\n{places}"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_first_line_of_a_public_docstring_is_a_sentence(package):
    wrong = []
    for passage in sources(PACKAGES[package]).docstrings:
        line = passage.text.strip().splitlines()[0]
        if passage.public and (len(line) > FIRST_LINE_MAX or not line.endswith((".", ".)"))):
            wrong.append(f"{passage}: {line}")
    assert len(wrong) <= WRONG_FIRST_LINES_LIMITS[package], "\n".join(wrong)


def test_markers_are_counted_in_docstrings_and_comments_only():
    source = '"""What is there."""\n\nwhere_the = "somebody"  # where nobody looks\n\n\ndef f():\n    """So much."""\n'
    found = read(source).prose
    assert sum(len(passage.text.split()) for passage in found) == 8
    assert sorted(place.line for place in marked(found)) == [1, 3, 3, 7]


def test_a_marker_is_found_across_two_lines():
    source = '"""First.\n\nIt is known what\nis there."""\n\n# Where\n# the end is.\n'
    found = marked(read(source).prose)
    assert [(place.line, place.marker) for place in found] == [(3, "riddle"), (6, "where-if")]


def test_texts_are_strings_of_several_words_that_are_no_docstrings():
    raised = """raise E(f"what is {'the other one'!r} and {x}", "a key", help="so many are none")\n"""
    source = f'"""A docstring of five words."""\n{raised}'
    found = [passage.text for passage in read(source).texts]
    assert sorted(found) == ["so many are none", "the other one", "what is {} and {}"]


def test_code_on_a_page_is_not_counted():
    text = "One if two.\n\n```python\n# what is this\n```\n\n    what is that\n\nSo far three.\n"
    found = page(ROOT / "made.md", text)
    assert found.text.split() == ["One", "if", "two.", "So", "far", "three."]
    assert [place.line for place in marked([found])] == [9]


def test_sentences_end_at_their_stops():
    docstring = """Returns the sum. It is exact.

    Args:
        first: a number; not negative.
        second: another
            number.

        >>> add(1, 2)
    """
    assert list(sentences(docstring)) == [
        "Returns the sum.",
        "It is exact.",
        "a number; not negative.",
        "another number.",
    ]


if __name__ == "__main__":
    for folder in [Path(name).resolve() for name in sys.argv[1:]] or PACKAGES.values():
        found = sources(folder)
        print(*marked(found.prose + found.texts), sep="\n")
        share, _ = long_sentences(found.docstrings)
        rates = f"prose {rate(found.prose):.1f}, texts {rate(found.texts):.1f} markers per 1,000 words"
        print(f"{folder.name}: {rates}; {share:.1f} % long sentences")
