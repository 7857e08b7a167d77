"""The shells, one for trio and one without async, have the same files, names and signatures around one core."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import tailrace
import tailrace.blocking

SDK = Path(tailrace.__file__).parent
SHELLS = ("trio", "blocking")
# Files that only one shell needs.
OWN_FILES = {
    # The transport and what runs beside the body of a context manager; the only follower and replica are async.
    "trio": {"transport", "lifetime", "room", "host", "worker_thread", "request", "follower", "replica"},
    "blocking": {"dialer", "guard"},
}
HANDLES = ("Client", "Feed", "Writer", "Stage", "Stream")
# Public members that one shell does not have. A blocking program consumes by the source of Spark.
OWN_MEMBERS = {
    "trio": {
        "Feed": {"consume", "explain_resume", "follow", "host", "items", "level", "partition_map", "stream"},
        "Stream": {"barrier", "has_event", "settle", "ring_floor", "ring_change", "failover_log", "watch_history"},
    },
    "blocking": {
        "Client": {"close", "deadline"},
        "Feed": {"forget"},
        "Writer": {"send"},
        "Stage": {"send", "stage_id"},
        "Stream": {"close", "finished", "next_event"},
    },
}
# Parameters that one shell does not have: a trio program sets a time-out by a cancel scope, and waits in a task.
OWN_PARAMETERS = {"trio": {"linger_s", "host"}, "blocking": {"timeout", "deadline"}}
# A shorter text is the same in both shells by chance.
SHARED_DOCSTRING_CHARS_MAX = 250


def members(shell, handle):
    """The public members of a handle by name, those of its bases included."""
    kind = getattr(tailrace if shell == "trio" else tailrace.blocking, handle)
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
    assert files["trio"] == files["blocking"]


@pytest.mark.parametrize("handle", HANDLES)
def test_handles_have_the_same_members(handle):
    assert members("trio", handle).keys() == members("blocking", handle).keys()


def test_a_member_that_is_one_shells_own_is_there():
    for shell, handles in OWN_MEMBERS.items():
        for handle, names in handles.items():
            kind = getattr(tailrace if shell == "trio" else tailrace.blocking, handle)
            assert [name for name in names if not hasattr(kind, name)] == []


@pytest.mark.parametrize("handle", HANDLES)
def test_members_have_the_same_signatures(handle):
    blocking = members("blocking", handle)
    for name, member in members("trio", handle).items():
        if inspect.isfunction(member):
            assert parameters("trio", member) == parameters("blocking", blocking[name]), f"{handle}.{name}"
            returned = [inspect.signature(function).return_annotation for function in (member, blocking[name])]
            assert returned[0] == returned[1], f"{handle}.{name}"


def test_connect_has_the_same_signature():
    assert parameters("trio", tailrace.connect) == parameters("blocking", tailrace.blocking.connect)


def docstrings(shell):
    for path in sorted((SDK / shell).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield ast.get_docstring(node) or "", f"{shell}/{path.name}: {node.name}"


def test_no_documentation_is_written_twice():
    of_trio = dict(docstrings("trio"))
    twice = [
        (of_trio[text], where)
        for text, where in docstrings("blocking")
        if len(text) > SHARED_DOCSTRING_CHARS_MAX and text in of_trio
    ]
    assert twice == []
