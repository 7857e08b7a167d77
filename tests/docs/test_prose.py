"""The prose is plain English: markers of the old manner, per 1,000 words, stay below a bound for each package.

A marker alone proves nothing ("what to do" is fine); many of them show that a text has riddles in place of names. The
bounds of the packages only go down: if a change brings a figure well below its bound, lower the bound in that change.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import NamedTuple

import pytest
from tests.docs.test_docs import DOCS, ROOT

MARKERS = {
    # Riddles: "what is kept", "what the node has", where a noun names it.
    "riddle": r"\bwhat (?:is|was|has|had|they|it|a|the|others|nobody|of|does)\b",
    # "where" in place of "if" or "when".
    "where-if": r"\bwhere (?:there|it|one|a|the|that|they|nothing|nobody|this|what)\b",
    "nobody": r"\b(?:nobody|somebody|whoever)\b",
    "so-much": r"\bso (?:many|much|long|far|late|old|little)\b|\b(?:is none|are none|is no more)\b",
}
PATTERNS = [re.compile(pattern, re.IGNORECASE) for pattern in MARKERS.values()]
# Per 1,000 words. The documents have reached theirs; the packages still have to.
BOUNDS = {"client_sdk": 16.0, "server": 24.0, "spark_sink": 21.5, "docs": 2.0, "CONTRIBUTING.md": 2.0}


class Count(NamedTuple):
    """Words, and markers among them."""

    words: int
    markers: int

    @property
    def rate(self):
        return 1000 * self.markers / max(self.words, 1)


def count(texts):
    words = markers = 0
    for text in texts:
        words += len(text.split())
        markers += sum(len(pattern.findall(text)) for pattern in PATTERNS)
    return Count(words, markers)


def prose_of_page(text):
    """The text of a page, without fenced and indented blocks."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)


def prose_of_source(source):
    """The docstrings and the comments of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("#: ")


def prose(name):
    path = ROOT / name
    for page in [path] if path.is_file() else sorted(path.rglob("*.md")):
        yield prose_of_page(page.read_text())
    for module in sorted(path.rglob("*.py")):
        yield from prose_of_source(module.read_text())


@pytest.mark.parametrize("name", BOUNDS)
def test_the_prose_stays_below_its_bound(name):
    found = count(prose(name))
    assert found.words > 500
    assert found.rate <= BOUNDS[name], f"{name}: {found.rate:.1f} markers per 1,000 words, {BOUNDS[name]} are permitted"


@pytest.mark.parametrize("page", sorted((DOCS / "guides").glob("*.md")), ids=lambda page: page.stem)
def test_each_guide_stays_below_a_bound_of_its_own(page):
    assert count([prose_of_page(page.read_text())]).rate <= 4.0


def test_markers_are_counted_in_docstrings_and_comments_only():
    source = '"""What is there."""\n\nwhere_the = "somebody"  # where nobody looks\n\n\ndef f():\n    """So much."""\n'
    assert count(prose_of_source(source)) == Count(8, 4)


def test_code_on_a_page_is_not_counted():
    page = "One if two.\n\n```python\n# what is this\n```\n\n    what is that\n\nSo far three.\n"
    assert count([prose_of_page(page)]) == Count(6, 1)
