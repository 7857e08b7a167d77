"""Real repositories: what their histories are as changes, and that these end at the tree that git lists."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest

from pyspark_tailrace.demo import history as history_module
from pyspark_tailrace.demo.changes import TEXT_BYTES_MAX, TreeEntry
from pyspark_tailrace.demo.git import GitFailed, run_git
from pyspark_tailrace.demo.history import GitHistory, LogEntry, expected_tree, open_history, parse_log
from pyspark_tailrace.demo.standard_library import StandardLibrary, blob_id

pytestmark = pytest.mark.slow

NOT_UTF8 = b"caf\xe9-\xff.txt"


def replayed(changes):
    """The tree at which the changes end; a deletion of what is not there is an error."""
    tree = {}
    for change in changes:
        if change.value is None:
            del tree[change.key]
        else:
            value = json.loads(change.value)
            tree[change.key] = TreeEntry(value["mode"], value["blob"])
    return tree


def steps_of(history):
    """What each step did, in order: path to "gone" or to mode and text."""
    steps = {}
    for change in history.changes():
        value = None if change.value is None else json.loads(change.value)
        did = "gone" if value is None else (value["mode"], value["text"])
        steps.setdefault(change.step, {})[change.key] = did
    return steps


def checked(repository):
    """The steps of the repository's history, which has to end at its tree."""
    history = open_history(repository.path)
    assert isinstance(history, GitHistory)
    assert history.note == ""
    tree = replayed(history.changes())
    assert tree == history.expected()
    assert tree == expected_tree(repository.path, "HEAD")
    return steps_of(history)


def test_value_says_mode_blob_size_commit_time_and_text(repository):
    repository.write("a.txt", "Grüße\n".encode())
    commit = repository.commit()
    [change] = open_history(repository.path).changes()
    assert change.key == b"a.txt"
    assert change.step == 1
    assert json.loads(change.value) == {
        "mode": "100644",
        "blob": blob_id("Grüße\n".encode()),
        "size": 8,
        "commit": commit,
        "time": repository.seconds,
        "text": "Grüße\n",
    }


def test_put_change_delete(repository):
    path = repository.write("a", b"1")
    repository.commit()
    repository.write("a", b"2")
    repository.write("b/c", b"3")
    repository.commit()
    path.unlink()
    repository.commit()
    assert checked(repository) == {
        1: {b"a": ("100644", "1")},
        2: {b"a": ("100644", "2"), b"b/c": ("100644", "3")},
        3: {b"a": "gone"},
    }


def test_rename_is_a_deletion_and_a_new_path(repository):
    path = repository.write("old name", b"content\n" * 100)
    repository.commit()
    path.rename(path.with_name("new name"))
    repository.commit()
    assert checked(repository)[2] == {b"old name": "gone", b"new name": ("100644", "content\n" * 100)}


def test_mode_change(repository):
    path = repository.write("run", b"#!/bin/sh\n")
    repository.commit()
    path.chmod(0o755)
    repository.commit()
    assert checked(repository)[2] == {b"run": ("100755", "#!/bin/sh\n")}


def test_symbolic_link_and_file_take_each_others_place(repository):
    path = repository.write("a", b"content")
    repository.commit()
    path.unlink()
    path.symlink_to("to/somewhere")
    repository.commit()
    path.unlink()
    repository.write("a", b"content again")
    repository.commit()
    steps = checked(repository)
    assert steps[2] == {b"a": ("120000", "to/somewhere")}
    assert steps[3] == {b"a": ("100644", "content again")}


def test_file_and_folder_take_each_others_place(repository):
    path = repository.write("a", b"file")
    repository.commit()
    path.unlink()
    repository.write("a/b", b"in a folder")
    repository.commit()
    shutil.rmtree(path)
    repository.write("a", b"file again")
    repository.commit()
    steps = checked(repository)
    assert steps[2] == {b"a": "gone", b"a/b": ("100644", "in a folder")}
    assert steps[3] == {b"a/b": "gone", b"a": ("100644", "file again")}


def test_submodule_has_an_id_and_no_content(repository):
    repository.write("a", b"a")
    commit = repository.commit()
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{commit},vendor/lib")
    repository.git("commit", "--quiet", "--message", "submodule")
    history = open_history(repository.path)
    *_, change = history.changes()
    value = json.loads(change.value)
    assert change.key == b"vendor/lib"
    assert (value["mode"], value["blob"], value["size"], value["text"]) == ("160000", commit, None, None)
    assert replayed(history.changes()) == history.expected()


def test_submodule_takes_the_place_of_a_file_and_goes(repository):
    repository.write("lib", b"a")
    commit = repository.commit()
    repository.git("update-index", "--cacheinfo", f"160000,{commit},lib")
    repository.git("commit", "--quiet", "--message", "submodule")
    repository.git("update-index", "--force-remove", "lib")
    repository.git("commit", "--quiet", "--message", "no submodule")
    assert checked(repository) == {1: {b"lib": ("100644", "a")}, 2: {b"lib": ("160000", None)}, 3: {b"lib": "gone"}}


def test_merge_is_its_difference_to_the_first_parent(repository):
    repository.write("a", b"1")
    repository.commit()
    repository.git("switch", "--quiet", "--create", "side")
    repository.write("side", b"1")
    repository.commit()
    repository.write("side", b"2")
    repository.commit()
    repository.git("switch", "--quiet", "main")
    repository.write("a", b"2")
    repository.commit()
    repository.git("merge", "--quiet", "--no-commit", "side")
    repository.write("only in the merge", b"3")
    repository.commit()
    steps = checked(repository)
    assert list(steps) == [1, 2, 3]
    assert steps[3] == {b"only in the merge": ("100644", "3"), b"side": ("100644", "2")}


def test_commits_of_a_line_that_runs_backwards_in_time_stay_in_order(repository):
    for number in range(4):
        repository.seconds -= 100_000
        repository.write("a", b"%d" % number)
        repository.commit()
    assert [list(step.values()) for step in checked(repository).values()] == [
        [("100644", str(number))] for number in range(4)
    ]


def test_commits_that_change_nothing_count_as_steps(repository):
    repository.commit()
    repository.write("a", b"1")
    repository.commit()
    repository.commit()
    repository.commit()
    repository.write("a", b"2")
    repository.commit()
    repository.commit()
    assert list(checked(repository)) == [2, 5]
    assert open_history(repository.path).steps == 6


def test_paths_of_any_bytes(repository):
    names = [NOT_UTF8, b"with\nnew\tline", b":100644 000000 1 2 D", b'"quoted"', "日本".encode(), b" ", b"-z", b"a\\b"]
    names.append(b"0" * 40 + b" 1700000000")  # looks like a commit in the log
    for name in names:
        repository.write(name, name)
    repository.commit()
    for name in names[::2]:
        os.unlink(os.fsencode(repository.path) + b"/" + name)
    repository.commit()
    steps = checked(repository)
    assert steps[1].keys() == set(names)
    assert steps[2] == dict.fromkeys(names[::2], "gone")


def test_binary_and_other_encodings_have_no_text(repository):
    repository.write("binary", b"\x7fELF\0\1\2")
    repository.write("latin-1", "Grüße".encode("latin-1"))
    repository.write("empty", b"")
    repository.commit()
    assert checked(repository)[1] == {
        b"binary": ("100644", None),
        b"latin-1": ("100644", None),
        b"empty": ("100644", ""),
    }


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"x" * TEXT_BYTES_MAX, "x" * TEXT_BYTES_MAX),
        (b"x" * (TEXT_BYTES_MAX + 1), "x" * TEXT_BYTES_MAX),
        (b"xy" + "€".encode() * 700_000, "xy" + "€" * ((TEXT_BYTES_MAX - 2) // 3)),
        (b"x" * 3_000_000 + b"\0", None),
        (b"x" * 3_000_000 + b"\xff", None),
        (b"x" * 3_000_000 + b"\xc3", None),
        (b"\0" + b"x" * 3_000_000, None),
    ],
    ids=["at the bound", "one more", "cut in characters", "NUL late", "no UTF-8 late", "cut off", "NUL early"],
)
def test_long_content(repository, content, text):
    repository.write("long", content)
    repository.write("next", b"n")
    repository.commit()
    assert checked(repository)[1] == {b"long": ("100644", text), b"next": ("100644", "n")}
    change = next(open_history(repository.path).changes())
    assert json.loads(change.value)["size"] == len(content)


def test_more_blobs_than_are_open_at_once(repository):
    for number in range(100):
        repository.write(f"{number:03}", b"%d" % number)
    repository.commit()
    steps = checked(repository)
    assert steps[1] == {b"%03d" % number: ("100644", str(number)) for number in range(100)}


def test_the_commit_is_fixed_when_the_history_is_opened(repository):
    repository.write("a", b"1")
    repository.commit()
    history = open_history(repository.path)
    repository.write("a", b"2")
    repository.write("b", b"2")
    repository.commit()
    assert replayed(history.changes()) == history.expected() == {b"a": TreeEntry("100644", blob_id(b"1"))}


def test_of_uncommitted_files_nothing_is_seen(repository):
    repository.write("a", b"1")
    repository.commit()
    repository.write("a", b"not committed")
    assert checked(repository) == {1: {b"a": ("100644", "1")}}


def test_shallow_clone_begins_with_all_that_its_oldest_commit_has(repository, tmp_path):
    for number in range(5):
        repository.write(f"file {number}", b"%d" % number)
        repository.commit()
    clone = tmp_path / "clone"
    repository.git("clone", "--quiet", "--depth=2", repository.path.as_uri(), str(clone))
    history = open_history(clone)
    assert history.steps == 2
    assert replayed(history.changes()) == history.expected()
    assert len(steps_of(history)[1]) == 4


def test_bare_clone_and_detached_head(repository, tmp_path):
    repository.write("a", b"1")
    first = repository.commit()
    repository.write("a", b"2")
    repository.commit()
    bare = tmp_path / "bare"
    repository.git("clone", "--quiet", "--bare", repository.path.as_uri(), str(bare))
    assert open_history(bare).steps == 2
    repository.git("checkout", "--quiet", "--detach", first)
    assert checked(repository) == {1: {b"a": ("100644", "1")}}


def test_folder_within_the_repository_gives_the_whole(repository):
    repository.write("a", b"1")
    repository.write("below/b", b"2")
    repository.commit()
    history = open_history(repository.path / "below")
    assert replayed(history.changes()) == history.expected()
    assert history.expected().keys() == {b"a", b"below/b"}


def test_repository_with_long_ids(tmp_path, repository):
    folder = tmp_path / "sha256"
    folder.mkdir()
    repository.git("init", "--quiet", "--object-format=sha256", str(folder))
    repository.path = folder
    path = repository.write("a", b"1")
    repository.commit()
    path.unlink()
    repository.write("b", b"2")
    repository.commit()
    assert checked(repository) == {1: {b"a": ("100644", "1")}, 2: {b"a": "gone", b"b": ("100644", "2")}}


def test_settings_of_the_user_and_of_the_repository_change_nothing(repository, monkeypatch):
    repository.write("a", b"content\n" * 50)
    repository.write("below/b", b"1")
    repository.commit()
    repository.git("switch", "--quiet", "--create", "side")
    repository.git("mv", "a", "z")
    repository.commit()
    repository.git("switch", "--quiet", "main")
    repository.write("below/b", b"2")
    repository.commit()
    repository.git("merge", "--quiet", "--no-edit", "side")
    expected = list(open_history(repository.path / "below").changes())
    order = repository.path / "order"
    order.write_text("z\nb*\n")
    for name, value in {
        "color.ui": "always",
        "core.abbrev": "7",
        "core.quotePath": "true",
        "diff.external": "false",
        "diff.ignoreSubmodules": "all",
        "diff.mnemonicPrefix": "true",
        "diff.orderFile": str(order),
        "diff.relative": "true",
        "diff.renames": "copies",
        "format.pretty": "fuller",
        "log.abbrevCommit": "true",
        "log.date": "relative",
        "log.decorate": "full",
        "log.diffMerges": "combined",
        "log.follow": "true",
        "log.showRoot": "false",
        "log.showSignature": "true",
    }.items():
        repository.git("config", name, value)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    assert list(open_history(repository.path / "below").changes()) == expected


def test_replaced_commits_are_not_followed(repository):
    repository.write("a", b"1")
    first = repository.commit()
    repository.write("a", b"2")
    second = repository.commit()
    repository.git("replace", second, first)
    assert list(steps_of(open_history(repository.path))) == [1, 2]


def test_changes_can_be_left_at_any_time(repository):
    for number in range(200):
        repository.write(f"{number}", b"x" * 100_000)
    repository.commit()
    changes = open_history(repository.path).changes()
    next(changes)
    changes.close()


def test_missing_blob_is_named(repository):
    repository.write("a", b"1")
    repository.commit()
    blob = repository.git("rev-parse", "HEAD:a")
    (repository.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(GitFailed, match=rf"git has no such blob: {blob} missing. The clone is damaged"):
        list(open_history(repository.path).changes())


def test_missing_tree_is_an_error_in_gits_words(repository):
    repository.write("a/b", b"1")
    repository.commit()
    repository.write("a/b", b"2")
    repository.commit()
    tree = repository.git("rev-parse", "HEAD~1:a")
    (repository.path / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    with pytest.raises(GitFailed, match=rf"git log failed in .*{tree}"):
        list(open_history(repository.path).changes())


def test_damaged_blob_is_an_error_in_gits_words(repository):
    repository.write("a", bytes(range(256)) * 1000)
    repository.commit()
    blob = repository.git("rev-parse", "HEAD:a")
    path = repository.path / ".git" / "objects" / blob[:2] / blob[2:]
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(GitFailed, match=blob):
        list(open_history(repository.path).changes())


def test_failure_names_what_failed_and_where(repository):
    with pytest.raises(GitFailed, match=rf"git rev-parse failed in {re.escape(str(repository.path))}: fatal: "):
        run_git(repository.path, "rev-parse", "--verify", "no-such-name")


def test_log_that_ends_within_an_entry():
    tokens = iter([b"ab 1", b":000000 100644 0 cd A"])
    with pytest.raises(GitFailed, match="ends within an entry"):
        list(parse_log(tokens))


def test_log_entries():
    tokens = [b"aa 1", b"bb 2", b"\n:000000 100644 00 cc A", b"\n:odd", b":100644 000000 cc 00 D", b"x", b"dd 3"]
    assert list(parse_log(tokens)) == [
        LogEntry(2, "bb", 2, b"\n:odd", TreeEntry("100644", "cc")),
        LogEntry(2, "bb", 2, b"x", None),
    ]


def test_without_a_repository_the_standard_library(tmp_path):
    history = open_history(tmp_path)
    assert isinstance(history, StandardLibrary)
    assert "not a git repository" in history.note


def test_without_commits_the_standard_library(repository):
    history = open_history(repository.path)
    assert isinstance(history, StandardLibrary)
    assert history.note == f"the repository at {repository.path} has no commits"


def test_without_git_the_standard_library(repository, monkeypatch):
    monkeypatch.setattr(history_module.shutil, "which", lambda name: None)
    history = open_history(repository.path)
    assert isinstance(history, StandardLibrary)
    assert history.note == "git is not installed"


def test_what_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere is not a folder; give the path of a git repository"):
        open_history(tmp_path / "nowhere")
