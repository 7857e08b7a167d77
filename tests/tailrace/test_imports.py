"""``import tailrace`` loads what a program needs that writes and reads; the rest comes with its first use."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace

ROOMS = {"block", "consuming", "copies", "link", "model", "requests", "trio", "wire"}
# Of ``copies`` the package and the call of `Feed.fetch`.
LATER = {
    "tailrace.copies.fetch",
    "tailrace.copies.layout",
    "tailrace.consuming.damages",
    "tailrace.consuming.explain",
    "tailrace.consuming.items_core",
    "tailrace.consuming.refetch",
    "tailrace.consuming.time_range",
    "tailrace.link.watch",
    "tailrace.trio.fetch",
    "tailrace.trio.follower",
    "tailrace.wire.segment_messages",
    "tailrace.trio.direct_wait",
    "tailrace.trio.file_part",
    "tailrace.trio.lent_wait",
}
# The modules of today, and a few more. With each, a command and a Spark task take about 0.5 ms longer to start.
MODULES_MAX = 102


# Runs each argument in a fork of a process that has loaded the libraries, which take most of the time, and no tailrace.
EACH = """
import logging, os, sys, traceback
import trio
assert not [name for name in sys.modules if name.startswith("tailrace")]
for code in sys.argv[1:]:
    pid = os.fork()
    if not pid:
        try:
            exec(code)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, code
"""


def in_new_process(code, *arguments):
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_importing_the_package_loads_only_what_most_programs_need():
    loaded = {
        name for name in in_new_process("import sys, tailrace; print(*sys.modules)") if name.startswith("tailrace")
    }
    assert {name.split(".")[1] for name in loaded if name.count(".") > 1} == ROOMS
    assert not loaded & LATER
    assert len(loaded) <= MODULES_MAX


@pytest.mark.slow
@pytest.mark.parametrize("how", ["from tailrace import {0}", "import tailrace; tailrace.{0}"])
def test_a_name_that_is_loaded_later_can_be_imported_first(how):
    in_new_process(EACH, *(how.format(name) for name in (*tailrace._LATER, *tailrace._PACKAGES)))


def test_all_names_are_there_and_are_listed():
    assert [name for name in tailrace.__all__ if not hasattr(tailrace, name)] == []
    assert set(tailrace.__all__) <= set(dir(tailrace))
    assert tailrace.indexes.MemoryIndex.__module__ == "tailrace.indexes.memory"


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'tailrace' has no attribute 'Reader'"):
        getattr(tailrace, "Reader")  # noqa: B009


def test_type_checkers_see_the_names_that_are_loaded_later_in_their_modules():
    tree = ast.parse(Path(tailrace.__file__).read_text())
    [for_types] = [n for n in tree.body if isinstance(n, ast.If) and isinstance(n.test, ast.Name)]
    seen = {alias.name: node.module for node in for_types.body for alias in node.names}
    assert seen == tailrace._LATER | dict.fromkeys(tailrace._PACKAGES, "tailrace")
    assert set(seen) - set(tailrace.__all__) == {"asyncio"}, "a star import would hide Python's own"
