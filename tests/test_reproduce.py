"""A mend is reproduced by its trailers: its tests fail before the commit and pass with it."""

from __future__ import annotations

import subprocess

import pytest
from tests import reproduce
from tests.reproduce import main, mends

pytestmark = pytest.mark.slow

TEST = "tests/test_it.py::test_it"


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture
def commit(tmp_path, monkeypatch):
    """Returns a function that commits a value, the value that the test expects, and a message."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # those of the project take a second of each start
    folder = tmp_path / "repository"
    (folder / "client_sdk").mkdir(parents=True)
    (folder / "tests").mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")

    def commit(value, expected, message):
        (folder / "client_sdk" / "product.py").write_text(f"VALUE = {value}\n")
        (folder / "tests" / "test_it.py").write_text(
            f"from product import VALUE\n\n\ndef test_it():\n    assert VALUE == {expected}\n"
        )
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", message)
        return folder

    commit(1, 1, "Begin")
    return commit


def test_a_mend_is_reproduced_and_leaves_nothing_behind(commit, capfd):
    folder = commit(22, 22, f"Mend it\n\nWhy.\n\nBug: 13.2\nTest: {TEST}")
    assert main(["13.2"], folder) == 0
    assert "assert 1 == 22" in capfd.readouterr().out
    assert len(list((folder / ".git").glob("worktrees/*"))) == 0


def test_a_test_that_passes_before_the_mend_reproduces_nothing(commit, capfd):
    folder = commit("1.0", 1, f"Mend nothing\n\nBug: 13.2\nTest: {TEST}")
    assert main(["13.2"], folder) == 1
    assert f"passes before the mend: {TEST}" in capfd.readouterr().err


def test_a_test_that_fails_with_the_mend_reproduces_nothing(commit, capfd):
    folder = commit(2, 3, f"Mend it badly\n\nBug: 13.2\nTest: {TEST}")
    assert main(["13.2"], folder) == 1
    assert f"fails with the mend: {TEST}" in capfd.readouterr().err


def test_a_test_that_is_not_there_reproduces_nothing(commit, capfd):
    folder = commit(2, 2, "Mend it\n\nBug: 13.2\nTest: tests/test_it.py::test_other")
    assert main(["13.2"], folder) == 1
    assert "has none of the tests that it names" in capfd.readouterr().err


def test_a_renamed_test_is_followed_and_a_lost_one_is_told(commit, monkeypatch, capfd):
    earlier, lost = "tests/test_it.py::test_earlier", "tests/test_it.py::test_lost"
    monkeypatch.setitem(reproduce.RENAMED, earlier, TEST)
    folder = commit(2, 2, f"Mend it\n\nBug: 13.2\nTest: {earlier}\nTest: {lost}")
    assert main(["13.2"], folder) == 0
    said = capfd.readouterr().out
    assert f"fails before, passes with it: {TEST}\n" in said
    assert f"not there when the bug was mended: {lost}" in said


def test_every_renamed_test_is_there_today_in_some_file():
    tests = "".join(path.read_text() for path in (reproduce.ROOT / "tests").rglob("test_*.py"))
    for name in reproduce.RENAMED.values():
        assert f"def {name.partition('::')[2]}(" in tests


def test_a_test_that_passes_before_is_told_beside_one_that_fails(commit, capfd):
    more = "tests/test_it.py::test_more"
    expected = "2\n\n\ndef test_more():\n    assert True"
    folder = commit(2, expected, f"Mend it\n\nBug: 13.2\nTest: {TEST}\nTest: {more}")
    assert main(["13.2"], folder) == 0
    assert f"passes before too: {more}" in capfd.readouterr().out


def test_bugs_are_listed_and_an_unknown_one_is_refused(commit, capfd):
    folder = commit(2, 2, f"Mend it\n\nBug: 13.2\nBug: 13.4\nTest: {TEST}")
    assert [(mend.bugs, mend.tests) for mend in mends(folder)] == [(("13.2", "13.4"), (TEST,))]
    assert main([], folder) == 0
    assert "13.2 13.4   Mend it" in capfd.readouterr().out
    assert main(["13.3"], folder) == 1
    assert "no commit in this history mends a bug 13.3" in capfd.readouterr().err


def test_the_name_of_a_test_may_have_blanks(commit):
    folder = commit(2, 2, "Mend it\n\nBug: 13.2\nTest: tests/test_it.py::test_it[a b]\nTest: tests/test_it.py::test_it")
    assert mends(folder)[0].tests == ("tests/test_it.py::test_it[a b]", "tests/test_it.py::test_it")


def test_a_folder_without_history_is_refused(tmp_path, capfd):
    assert main([], tmp_path) == 1
    assert "needs a clone with its history" in capfd.readouterr().err


@pytest.mark.soak
def test_a_test_that_hangs_before_the_mend_fails(commit, monkeypatch, capfd):
    monkeypatch.setattr(reproduce, "TEST_SECONDS_MAX", 60.0)
    hang = "2 if VALUE == 2 else __import__('time').sleep(600)"
    folder = commit(2, hang, f"Mend it\n\nBug: 13.2\nTest: {TEST}")
    assert main(["13.2"], folder) == 0
    assert f"{TEST} has not ended within 60 s" in capfd.readouterr().out


def test_a_test_that_imports_what_the_mend_adds_fails_before(commit, capfd):
    folder = commit("1\nADDED = 3", 1, f"Mend it\n\nBug: 13.2\nTest: {TEST}")
    test = folder / "tests" / "test_it.py"
    test.write_text("from product import ADDED\n\n\ndef test_it():\n    assert ADDED == 3\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--amend", "--no-edit")
    assert main(["13.2"], folder) == 0


def test_a_commit_of_tests_alone_is_no_mend(commit):
    folder = commit(1, 1.0, f"Widen a test\n\nBug: 13.2\nTest: {TEST}")
    assert mends(folder) == []
