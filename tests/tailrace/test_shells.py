"""The shells, for trio, for asyncio and without async, have the same files, names and signatures around one core."""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import re
from pathlib import Path

import pytest

import tailrace
import tailrace.asyncio
import tailrace.blocking

SDK = Path(tailrace.__file__).parent
SHELLS = ("trio", "asyncio", "blocking")
MODULES = {"trio": tailrace, "asyncio": tailrace.asyncio, "blocking": tailrace.blocking}
PAIRS = list(itertools.combinations(SHELLS, 2))
# Files that only one shell needs.
OWN_FILES = {
    # The transport and what runs beside the body of a context manager; the only replica is async.
    "trio": {
        *(
            "transport",
            "tcp",
            "file_part",
            "listener",
            "ready_sockets",
            "direct_wait",
            "lent_wait",
            "trio_loop",
            "lending",
            "lifetime",
            "room",
            "host",
            "worker_thread",
            "request",
        ),
        *("replica", "replica_link", "tls", "websocket"),
    },
    "asyncio": {"transport", "opening", "dialer", "lifetime", "room", "waiting", "worker_thread", "websocket"},
    "blocking": {"dialer", "guard", "tls_socket", "websocket_socket"},
}
HANDLES = ("Client", "Feed", "Writer", "Stage", "Stream", "Follower")
# Public members that one shell does not have.
OWN_MEMBERS = {
    "trio": {"Feed": {"host"}},
    "asyncio": {},
    "blocking": {
        "Client": {"close", "deadline", "takes_progress"},
        "Feed": {"forget"},
        "Writer": {"send"},
        "Stage": {"send", "stage_id"},
        "Stream": {"close"},
    },
}
# Parameters that one shell does not have: with async a program sets a time-out by its library, and waits in a task.
# Only the steps of a stream have one in all.
OWN_PARAMETERS = {
    "trio": {"linger_s", "host", "timeout"},
    "asyncio": {"linger_s", "timeout"},
    "blocking": {"timeout", "deadline"},
}
# The loops that resume a plan, and that pass the conditions of a writer. They wait inside, so each shell has its own.
LOOPS = {"run", "pass_all"}
# So many statements in a row stand in two functions of both shells at most, whether they wait or not.
SHARED_STATEMENTS_MAX = 3
# The page that tells an author of a third shell what to write, and its section. Lines of code change, so they may
# differ from the page's by this factor.
PAGE, SECTION = SDK.parents[1] / "docs" / "internals" / "layers.md", "### To add a shell"
LINES_FACTOR = 1.5
# A shorter text is the same in both shells by chance.
SHARED_DOCSTRING_CHARS_MAX = 250


def members(shell, handle):
    """The public members of a handle by name, those of its bases included."""
    kind = getattr(MODULES[shell], handle)
    found = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_") and name != "check_process"}
    return {name: member for name, member in found.items() if name not in OWN_MEMBERS[shell].get(handle, ())}


def parameters(shell, function):
    """Name, kind, default and type of each parameter that all shells have."""
    return {
        name: (parameter.kind, parameter.default, parameter.annotation)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in OWN_PARAMETERS[shell]
    }


def test_shells_have_the_same_files():
    files = {shell: {path.stem for path in (SDK / shell).glob("*.py")} - OWN_FILES[shell] for shell in SHELLS}
    assert files["trio"] == files["asyncio"] == files["blocking"]


@pytest.mark.parametrize("handle", HANDLES)
def test_handles_have_the_same_members(handle):
    names = [members(shell, handle).keys() for shell in SHELLS]
    assert names[0] == names[1] == names[2]


def test_a_member_that_is_one_shells_own_is_there():
    for shell, handles in OWN_MEMBERS.items():
        for handle, names in handles.items():
            kind = getattr(MODULES[shell], handle)
            assert [name for name in names if not hasattr(kind, name)] == []


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize("other", ["asyncio", "blocking"])
def test_members_have_the_same_signatures(handle, other):
    others = members(other, handle)
    for name, member in members("trio", handle).items():
        if inspect.isfunction(member):
            assert parameters("trio", member) == parameters(other, others[name]), f"{handle}.{name}"
            returned = [inspect.signature(function).return_annotation for function in (member, others[name])]
            assert returned[0] == returned[1], f"{handle}.{name}"


@pytest.mark.parametrize("handle", HANDLES)
def test_asyncio_has_what_trio_has_with_the_same_documentation(handle):
    kinds = [getattr(MODULES[shell], handle) for shell in ("trio", "asyncio")]
    names = {name for name in dir(kinds[0]) if not name.startswith("_")} - {"host"}
    for name in names:
        ours, theirs = (inspect.getattr_static(kind, name) for kind in kinds)
        assert type(ours) is type(theirs), f"{handle}.{name}"
        if inspect.isfunction(ours):
            assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs), f"{handle}.{name}"
            assert inspect.signature(ours) == inspect.signature(theirs), f"{handle}.{name}"


def test_connect_has_the_same_signature():
    expected = parameters("trio", tailrace.connect)
    assert expected == parameters("asyncio", tailrace.asyncio.connect)
    assert expected == parameters("blocking", tailrace.blocking.connect)


def docstrings(shell):
    for path in sorted((SDK / shell).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield ast.get_docstring(node) or "", f"{shell}/{path.name}: {node.name}"


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_no_documentation_is_written_twice(one, other):
    known = dict(docstrings(one))
    twice = [
        (known[text], where)
        for text, where in docstrings(other)
        if len(text) > SHARED_DOCSTRING_CHARS_MAX and text in known
    ]
    assert twice == []


class WithoutAwait(ast.NodeTransformer):
    """Makes a function of a shell with async that of one without."""

    def visit_Await(self, node):
        return self.visit(node.value)

    def visit_AsyncWith(self, node):
        return ast.With(*(getattr(self.generic_visit(node), name) for name in ("items", "body")))

    def visit_AsyncFor(self, node):
        return ast.For(*(getattr(self.generic_visit(node), name) for name in ("target", "iter", "body", "orelse")))


BODIES = ("body", "handlers", "orelse", "finalbody")


def statements(body):
    """Each statement without those inside it, which follow it; docstrings are left out."""
    for statement in body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        yield (
            type(statement).__name__,
            *(
                str(
                    [
                        ast.dump(one) if isinstance(one, ast.AST) else one
                        for one in (part if isinstance(part, list) else [part])
                    ]
                )
                for name, part in ast.iter_fields(statement)
                if name not in BODIES
            ),
        )
        for name in BODIES:
            yield from statements(getattr(statement, name, ()))


def functions(shell):
    for path in sorted((SDK / shell).glob("*.py")):
        for node in ast.walk(WithoutAwait().visit(ast.parse(path.read_text()))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in LOOPS:
                yield f"{shell}/{path.name}: {node.name}", list(statements(node.body))


@pytest.mark.parametrize(("one", "other"), PAIRS)
@pytest.mark.slow
def test_no_logic_is_written_twice(one, other):
    of_other = list(functions(other))
    twice = []
    for here, ours in functions(one):
        for there, theirs in of_other:
            shared = difflib.SequenceMatcher(None, ours, theirs, autojunk=False).find_longest_match().size
            if shared > SHARED_STATEMENTS_MAX:
                twice.append((here, there, shared))
    assert twice == []


def rows_of_page():
    """(file, lines) of each row of the page's tables for an author of a shell."""
    section = PAGE.read_text().split(SECTION)[1].split("\n## ")[0]
    return {file: int(lines) for file, lines in re.findall(r"^\| `(\w+)\.py` \| (\d+) \|", section, re.MULTILINE)}


def test_the_page_tells_each_file_that_a_shell_needs():
    shared = {path.stem for path in (SDK / "blocking").glob("*.py")} - OWN_FILES["blocking"] - {"__init__"}
    rows = rows_of_page()
    assert shared <= rows.keys()
    of_trio = {path.stem: len(path.read_text().splitlines()) for path in (SDK / "trio").glob("*.py")}
    assert rows.keys() <= of_trio.keys(), "the page names files of the shell for trio, which has all calls"
    wrong = {
        file: (lines, of_trio[file])
        for file, lines in rows.items()
        if not 1 / LINES_FACTOR < lines / of_trio[file] < LINES_FACTOR
    }
    assert wrong == {}
