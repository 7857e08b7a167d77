"""The pages do what they show: each in a folder of its own, and all in one folder in the order of a reader."""

from __future__ import annotations

import pytest
from tests.docs.pages import Reader, Step, steps
from tests.docs.test_docs import DOCS, ROOT

PAGES = [
    ROOT / "README.md",
    DOCS / "tutorial.md",
    DOCS / "reference" / "command-line.md",
    *(
        DOCS / "guides" / f"{name}.md"
        for name in ("asyncio", "blocking", "arrow", "files", "indexes", "replication", "operations", "spark")
    ),
    DOCS / "examples" / "README.md",
]
# Each of their programs starts a Spark. tests/pyspark_tailrace runs those of the examples, and the guide's largest one,
# in the Spark of the tests. The pages themselves run in the soak tests.
WITH_MANY_SPARKS = PAGES[-2:]
# These start many nodes, and run in `make long`.
TAKE_LONG = {"command-line", "operations", "replication"}
# The pages with programs for trio.
FOR_TRIO = [page for page in PAGES if "\ntrio.run(main)\n" in page.read_text()]


@pytest.fixture
def reader(tmp_path):
    reader = Reader(tmp_path)
    yield reader
    reader.leave()


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.long] if page.stem in TAKE_LONG else [], id=page.stem)
        for page in PAGES
        if page not in WITH_MANY_SPARKS
    ],
)
def test_a_page_runs_in_a_folder_of_its_own(page, reader):
    reader.read(page)


@pytest.mark.slow
@pytest.mark.parametrize("page", FOR_TRIO, ids=[page.stem for page in FOR_TRIO])
def test_a_page_runs_under_asyncio_too(page, tmp_path):
    reader = Reader(tmp_path, uses_asyncio=True)
    try:
        reader.read(page)
    finally:
        reader.leave()


def test_the_pages_with_programs_for_trio_are_found():
    assert {page.stem for page in FOR_TRIO} == {"README", "tutorial", "indexes"}


@pytest.mark.soak
def test_all_pages_run_in_one_folder_in_their_order(reader):
    for page in PAGES:
        reader.read(page)


@pytest.mark.slow
def test_the_program_of_the_readme_ends_likewise_when_it_is_run_again(reader):
    [program] = steps(PAGES[0].read_text())
    reader.take([program, Step("program", program.text, ["...", program.printed[-1]])])


def test_the_steps_of_a_page():
    text = "\n".join(
        [
            "Text.\n",
            "```python\nprint(1)\n```\n",
            "    1\n",
            "More text.\n",
            "    $ one --with 'a word'\n    first\n\n    $ two\n    ...\n    tailrace: of stderr\n    ^C\n",
            "A synopsis:\n",
            "    a synopsis [--option]\n",
            "```python\nprint(2)\n```",
        ]
    )
    assert steps(text) == [
        Step("program", "print(1)\n", ["1"]),
        Step("command", "one --with 'a word'", ["first"]),
        Step("command", "two", ["..."]),
        Step("program", "print(2)\n", None),
    ]
