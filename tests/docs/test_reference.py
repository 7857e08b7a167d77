"""The reference has every public name, and each docstring says what a caller has to know."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.docs.test_docs import DOCS

import pyspark_tailrace
import tailrace
import tailrace.asyncio
import tailrace.blocking
import tailrace.indexes
import tailrace.testing
from tailrace_server.config import Config, Limits, Replication, StorageConfig

MODULES = (tailrace, tailrace.asyncio, tailrace.blocking, tailrace.indexes, tailrace.testing, pyspark_tailrace)
BUILD_SECONDS_MAX = 600


class Entry(NamedTuple):
    """A directive of a page: the kind, the full name, the members that it leaves out (None: it has none), whether it
    has those of base classes, and the only members that it has (none are named: all).
    """

    kind: str
    name: str
    excluded: frozenset[str] | None
    is_with_bases: bool
    only: frozenset[str] = frozenset()

    def has(self, member):
        """Whether the directive documents a member."""
        return self.excluded is not None and member not in self.excluded and (not self.only or member in self.only)


def entries():
    """Every autodoc directive of the reference, by the name that it documents."""
    found = {}
    for page in sorted((DOCS / "reference").glob("*.md")):
        module = ""
        blocks = re.split(r"^\.\. ", page.read_text(), flags=re.M)[1:]
        for block in blocks:
            kind, _, rest = block.partition(":: ")
            name = rest.split()[0].removesuffix("()")
            if kind == "currentmodule":
                module = name
                continue
            options = textwrap.dedent(block.partition("\n")[2]).partition("\n\n")[0]
            excluded = re.search(r":exclude-members: ((?:.|\n)*)", options)
            members = frozenset(re.findall(r"\w+", excluded[1])) if excluded else frozenset()
            full = name if "." in name else f"{module}.{name}"
            assert full not in found, f"{full} is documented twice"
            named = re.search(r"^:members: (.*)", options, re.M)
            only = frozenset(re.findall(r"\w+", named[1])) if named else frozenset()
            shown = members if ":members:" in options else None
            found[full] = Entry(kind, full, shown, ":inherited-" in options, only)
    return found


ENTRIES = entries()


def public_objects():
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if not inspect.ismodule(value):
                yield f"{module.__name__}.{name}", value


def documented_callables():
    """(name, function, its class or None) of each function and method of the reference."""
    for full, value in public_objects():
        if inspect.isfunction(value):
            yield full, value, None
        elif inspect.isclass(value):
            kinds = value.__mro__ if ENTRIES[full].is_with_bases else (value,)
            for name, member in ((name, member) for kind in kinds for name, member in vars(kind).items()):
                function = getattr(member, "__func__", member)
                if not name.startswith("_") and ENTRIES[full].has(name):
                    yield f"{full}.{name}", function, value


CALLABLES = [(full, function) for full, function, _ in documented_callables() if inspect.isfunction(function)]
FIELDS = [
    (full, value) for full, value in public_objects() if inspect.isclass(value) and hasattr(value, "__match_args__")
]
TUPLES = [(full, value) for full, value in FIELDS if "__slots__" in vars(value) or issubclass(value, tuple)]


def section(text, name):
    """The names that a section of a docstring explains, or None where there is no such section."""
    match = re.search(rf"^{name}:\n((?:    .*\n|\n)+)", text + "\n", re.M)
    return None if match is None else re.findall(r"^    (\w+):", match[1], re.M)


def raises_itself(function):
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(tree))


def test_every_public_name_is_in_the_reference():
    assert {full for full, _ in public_objects()} - set(ENTRIES) == set()


@pytest.mark.parametrize("kind", [Config, Limits, Replication, StorageConfig])
def test_the_configuration_is_in_the_reference_with_a_comment_at_each_field(kind):
    assert ENTRIES[f"{kind.__module__}.{kind.__name__}"].excluded is not None
    source = inspect.getsource(kind)
    for name in kind.__dataclass_fields__:
        assert re.search(rf"^    #: .*\n    {name}:", source, re.M), f"{kind.__name__}.{name} has no comment"


def test_members_that_are_left_out_of_the_reference_are_there():
    for full, value in public_objects():
        for name in ENTRIES[full].excluded or ():
            assert hasattr(value, name), f"{full} has no {name}: delete it from :exclude-members:"


def test_every_public_member_has_a_docstring():
    for full, function, _ in documented_callables():
        if inspect.isfunction(function) or isinstance(function, property):
            assert inspect.getdoc(function), f"{full} has no docstring"


@pytest.mark.parametrize(("full", "function"), CALLABLES, ids=[full for full, _ in CALLABLES])
def test_a_docstring_has_arguments_results_and_errors(full, function):
    text = inspect.getdoc(function)
    signature = inspect.signature(function)
    parameters = [name for name in signature.parameters if name not in ("self", "cls")]
    assert (section(text, "Args") or []) == parameters, f"{full}: Args differ from the parameters"
    returned = str(signature.return_annotation)
    has_result = returned not in ("None", "Iterator[None]")
    assert ("\nReturns:\n" in text) >= has_result, f"{full} returns {returned}, and its docstring has no Returns"
    asks_a_node = inspect.iscoroutinefunction(function) and full.startswith(
        ("tailrace.Client.", "tailrace.Feed.", "tailrace.asyncio.Client.", "tailrace.asyncio.Feed.")
    )
    if raises_itself(function) or asks_a_node:
        assert section(text, "Raises"), f"{full} raises, and its docstring has no Raises"


@pytest.mark.parametrize("kind", [tailrace.Positions, tailrace.indexes.SQLiteIndex])
def test_a_docstring_of_a_class_has_the_arguments_of_its_constructor(kind):
    assert section(inspect.getdoc(kind), "Args") == list(inspect.signature(kind).parameters)


@pytest.mark.parametrize(("full", "kind"), TUPLES, ids=[full for full, _ in TUPLES])
def test_a_docstring_of_values_has_every_field(full, kind):
    fields = [name for name in kind.__match_args__ if not name.startswith("_")]
    listed = section(inspect.getdoc(kind), "Attributes") or []
    assert [name for name in fields if name not in listed] == [], f"{full}: fields without an explanation"


HANDLES = ("Client", "Feed", "Writer", "Stage", "Stream", "Follower")


@pytest.mark.parametrize("module", [tailrace, tailrace.asyncio, tailrace.blocking], ids=lambda module: module.__name__)
@pytest.mark.parametrize("name", HANDLES)
def test_a_handle_says_who_may_share_it_and_what_cancelling_does(module, name):
    kind = getattr(module, name)
    assert re.search(r"\b(tasks?|threads?)\b", kind.__doc__, re.IGNORECASE), "who may share it"
    if module is not tailrace.blocking and "cancelled" not in kind.__doc__:
        calls = [call for call, function in inspect.getmembers(kind, inspect.iscoroutinefunction) if call[0] != "_"]
        assert [call for call in calls if "cancel" not in getattr(kind, call).__doc__.lower()] == []


def test_sections_of_a_docstring():
    text = "Does it.\n\nArgs:\n    one: First,\n        continued: here.\n    two: Second.\n\nReturns:\n    It."
    assert section(text, "Args") == ["one", "two"]
    assert section(text, "Raises") is None


@pytest.mark.long
def test_the_site_is_built_without_warnings(tmp_path):
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False)
    assert built.returncode == 0, built.stderr
    assert Path(tmp_path, "index.html").is_file()
