"""The guide on testing shows parts of the examples, and the examples pass in a folder of their own."""

import re

import pytest
from tests.docs.test_docs import DOCS, fenced
from tests.tailrace.testing.pytest_runs import PytestRun

EXAMPLES = DOCS / "examples" / "testing"
GUIDE = (DOCS / "guides" / "testing.md").read_text()


def test_each_block_of_the_guide_is_in_an_example():
    texts = [path.read_text() for path in EXAMPLES.glob("*.py")]
    blocks = fenced(GUIDE, "python")
    assert len(blocks) > 5
    assert [block for block in blocks if not any(block in text for text in texts)] == []


def test_each_test_of_the_examples_is_in_the_guide():
    tests = "".join(path.read_text() for path in EXAMPLES.glob("test_*.py"))
    names = re.findall(r"def (test_\w+)|class (Test\w+)", tests)
    assert names
    assert [name for pair in names for name in pair if name not in GUIDE] == []


@pytest.mark.slow
def test_the_examples_pass(tmp_path):
    files = {path.name: path.read_text() for path in EXAMPLES.glob("*.py")}
    run = PytestRun(tmp_path, files)
    try:
        assert run.passed() > 20
    finally:
        run.end()
