"""Reads the history of a git repository as changes of a source tree, oldest first.

It is the history of the commit that HEAD names at the start, along first parents. A merge has the changes against its
first parent. The root commit, or the oldest commit of a shallow clone, adds all its paths. A rename is a deletion and a
new path. In this order the changes end exactly at the tree of that commit.
"""

from __future__ import annotations

import shutil
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyspark_tailrace.demo.changes import NO_CONTENT, SUBMODULE_MODE, Change, TreeEntry, encode_value
from pyspark_tailrace.demo.git import BlobReader, GitFailed, git_pipe, run_git, split_at_nul
from pyspark_tailrace.demo.standard_library import StandardLibrary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# A user's own settings must not change git's output. They are undone by settings, because the options for the same
# purpose need a newer git.
LOG = (
    *("-c", "log.diffMerges=separate"),
    *("-c", "log.showSignature=false"),
    *("-c", "diff.relative=false"),
    "log",
    "--first-parent",
    "--reverse",
    "--format=%H %ct",
    "--raw",
    "-z",
    "-m",
    "--root",
    "--no-renames",
    "--no-abbrev",
    "--no-color",
    "--ignore-submodules=none",
    "-O/dev/null",
)
NO_MODE = b"000000"


class History(Protocol):
    """Changes that end at a tree, which can also be read in another way, for a comparison."""

    @property
    def title(self) -> str:
        """A short description."""

    @property
    def note(self) -> str:
        """The reason why it is not the requested history; empty if it is."""

    @property
    def steps(self) -> int:
        """The last change's ``step``, or a little more."""

    def count(self) -> int:
        """Returns the number of changes."""

    def changes(self) -> Iterator[Change]:
        """Yields all changes, in order. Each call starts from the first."""

    def expected(self) -> dict[bytes, TreeEntry]:
        """Returns the tree at which the changes end, by path, read independently of them."""


class LogEntry(NamedTuple):
    """A line of the log: the entry of ``path`` after ``commit``; None if the commit deleted the path."""

    step: int
    commit: str
    time: int
    path: bytes
    entry: TreeEntry | None

    @property
    def has_content(self) -> bool:
        return self.entry is not None and self.entry.mode != SUBMODULE_MODE


@dataclass(frozen=True, slots=True)
class GitHistory:
    """The history of ``commit`` in ``repo``; ``steps`` is the count of its commits along first parents."""

    repo: Path
    commit: str
    steps: int
    note: str = ""

    @property
    def title(self) -> str:
        return f"the history of {self.repo}, {self.steps:,} commits up to {self.commit[:12]}"

    def count(self) -> int:
        """Returns the number of changes; reads no content. Raises GitFailed if the clone is damaged."""
        with git_pipe(self.repo, *LOG, self.commit, "--") as (_, log):
            return sum(1 for _ in parse_log(split_at_nul(log)))

    def changes(self) -> Iterator[Change]:
        """Yields the changes of all commits, in each commit in the order of the paths. Memory: 1 MiB of one blob.

        Two git processes run during the iteration; close the iterator to end them early. Raises GitFailed if the clone
        is damaged.
        """
        with (
            git_pipe(self.repo, *LOG, self.commit, "--") as (_, log),
            git_pipe(self.repo, "cat-file", "--batch") as (requests, answers),
        ):
            blobs = BlobReader(requests, answers)
            waiting: deque[LogEntry] = deque()
            for line in parse_log(split_at_nul(log)):
                if line.entry is not None and line.has_content:
                    blobs.ask(line.entry.blob)
                waiting.append(line)
                if len(waiting) == BlobReader.OPEN_MAX:
                    yield _change(waiting.popleft(), blobs)
            while waiting:
                yield _change(waiting.popleft(), blobs)

    def expected(self) -> dict[bytes, TreeEntry]:
        return expected_tree(self.repo, self.commit)


def open_history(path: Path) -> History:
    """Returns the history of the git repository at ``path`` (or around it); later commits do not change it.

    Without a repository it is the Python standard library, with a note of the reason. Raises ValueError if ``path`` is
    no folder.
    """
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; give the path of a git repository")
    if shutil.which("git") is None:
        return StandardLibrary(note="git is not installed")
    try:
        run_git(path, "rev-parse", "--git-dir")
    except GitFailed as error:
        return StandardLibrary(note=str(error))
    try:
        commit = run_git(path, "rev-parse", "--verify", "--quiet", "HEAD^{commit}").decode().strip()
    except GitFailed:
        return StandardLibrary(note=f"the repository at {path} has no commits")
    count = run_git(path, "rev-list", "--count", "--first-parent", commit)
    return GitHistory(path.resolve(), commit, int(count))


def expected_tree(repo: Path, commit: str) -> dict[bytes, TreeEntry]:
    """Returns the tree of ``commit`` by path, as ``git ls-tree`` lists it: modes and ids, with submodules."""
    tree = {}
    for line in run_git(repo, "ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")[:-1]:
        about, _, path = line.partition(b"\t")
        mode, _, blob = about.split(b" ")
        tree[path] = TreeEntry(mode.decode(), blob.decode())
    return tree


def parse_log(tokens: Iterable[bytes]) -> Iterator[LogEntry]:
    """Yields the lines of ``git log --raw -z --format='%H %ct'``, from its output split at NUL bytes.

    After each commit's id and time come its lines. A token with modes, ids and the kind of change begins with a colon,
    and the path is the next token. A path may be any bytes, so only its place tells that it is a path.
    """
    step, commit, time = 0, "", 0
    remaining = iter(tokens)
    for token in remaining:
        # Even with -z git puts a line feed between a commit and its changes.
        line = token.lstrip(b"\n")
        if line.startswith(b":"):
            path = next(remaining, None)
            if path is None:
                raise GitFailed("git's log ends within an entry")
            yield LogEntry(step, commit, time, path, _new_entry(line))
        elif line:
            name, _, seconds = line.partition(b" ")
            step, commit, time = step + 1, name.decode(), int(seconds)


def _new_entry(line: bytes) -> TreeEntry | None:
    _, mode, _, blob, _ = line.split(b" ")
    return None if mode == NO_MODE else TreeEntry(mode.decode(), blob.decode())


def _change(line: LogEntry, blobs: BlobReader) -> Change:
    if line.entry is None:
        return Change(line.path, None, line.step)
    content = blobs.read() if line.has_content else NO_CONTENT
    return Change(line.path, encode_value(line.entry, content, line.commit, line.time), line.step)
