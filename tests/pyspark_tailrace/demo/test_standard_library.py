from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from pyspark_tailrace.demo.changes import TreeEntry
from pyspark_tailrace.demo.standard_library import StandardLibrary, blob_id

pytestmark = pytest.mark.slow


@pytest.fixture
def library(tmp_path):
    """A small library: a package, a module that can be run, a link, a file that is no text, and what is no part."""
    root = tmp_path / "lib"
    for name, content in {
        "a.py": b"A = 1\n",
        "package/__init__.py": b"",
        "package/latin.py": b"# caf\xe9\n",
        "package/__pycache__/a.py": b"no part",
        "site-packages/b.py": b"no part",
        "package/data.txt": b"no part",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    (root / "a.py").chmod(0o755)
    (root / "link.py").symlink_to("/etc/link.py")
    return StandardLibrary(note="for a test", root=root)


def test_changes(library):
    changes = list(library.changes())
    assert [(change.key, change.step) for change in changes] == [
        (b"a.py", 1),
        (b"link.py", 2),
        (b"package/__init__.py", 3),
        (b"package/latin.py", 4),
    ]
    values = [json.loads(change.value) for change in changes]
    assert [value["mode"] for value in values] == ["100755", "120000", "100644", "100644"]
    assert [value["text"] for value in values] == ["A = 1\n", "/etc/link.py", "", None]
    assert [value["size"] for value in values] == [6, 12, 0, 7]
    assert {value["commit"] for value in values} == {None}
    assert library.steps == 4


def test_expected_is_the_state_of_the_files_now(library):
    before = library.expected()
    assert before[b"a.py"] == TreeEntry("100755", blob_id(b"A = 1\n"))
    (library.root / "a.py").write_bytes(b"A = 2\n")
    (library.root / "new.py").touch()
    (library.root / "link.py").unlink()
    after = library.expected()
    assert after[b"a.py"].blob == blob_id(b"A = 2\n")
    assert after.keys() - before.keys() == {b"new.py"}
    assert before.keys() - after.keys() == {b"link.py"}


def test_changes_end_at_what_is_expected(library):
    entries = {}
    for change in library.changes():
        value = json.loads(change.value)
        entries[change.key] = TreeEntry(value["mode"], value["blob"])
    assert entries == library.expected()


@pytest.mark.parametrize("content", [b"", b"A = 1\n", b"\0" * 100_000])
def test_ids_are_those_of_git(content):
    command = ["git", "hash-object", "--stdin", "-t", "blob"]
    assert (
        blob_id(content)
        == subprocess.run(command, input=content, capture_output=True, check=True).stdout.decode().strip()
    )


def test_by_default_it_is_the_library_of_this_python():
    library = StandardLibrary(note="")
    assert library.root == Path(sysconfig.get_path("stdlib"))
    keys = {change.key for change, _ in zip(library.changes(), range(300), strict=False)}
    assert b"abc.py" in keys
    assert not [key for key in keys if b"-packages" in key]
    assert library.steps > 300
    assert library.title.startswith("the standard library of Python 3.")
    assert os.fsencode("json/__init__.py") in library.expected()
