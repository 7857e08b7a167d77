"""The history of a git repository as changes of a source tree, oldest first.

It is the history of the commit that HEAD names when it is opened, along first parents: a merge changes what it changes
against its first parent, and the root commit, or the oldest one of a shallow clone, brings everything that it has. A
rename is a deletion and a new path. In this order the changes end at the very tree of that commit.
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

# A user's own settings must not change what git prints. They are undone as settings, which every git takes; the
# options for it are younger.
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
    """Changes that end at a tree which can be looked at in another way, for a comparison."""

    @property
    def title(self) -> str:
        """What it is, in a few words."""

    @property
    def note(self) -> str:
        """Why it is not the history that was asked for; empty where it is."""

    @property
    def steps(self) -> int:
        """The last change's ``step``, or a little more."""

    def count(self) -> int:
        """How many changes there are."""

    def changes(self) -> Iterator[Change]:
        """All changes, in order. Each call begins anew."""

    def expected(self) -> dict[bytes, TreeEntry]:
        """The tree at which the changes end, by path; not taken from them."""


class LogEntry(NamedTuple):
    """A line of the log: what ``commit`` made of ``path``; ``entry`` is None where it deleted it."""

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
        """How many changes there are; reads no content. GitFailed where the clone is damaged."""
        with git_pipe(self.repo, *LOG, self.commit, "--") as (_, log):
            return sum(1 for _ in parse_log(split_at_nul(log)))

    def changes(self) -> Iterator[Change]:
        """The changes of all commits, of one commit in the order of the paths. Memory: one blob, up to 1 MiB of it.

        Runs git twice during the iteration; close the iterator to end it early. GitFailed where the clone is damaged.
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
    """The history of the git repository at ``path`` (or around it), as of now: later commits do not change it.

    Where there is none, the Python standard library, with a note that says why. ValueError where ``path`` is no folder.
    """
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; give the path of a git repository")
    if shutil.which("git") is None:
        return StandardLibrary(note="there is no git here")
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
    """The tree of ``commit`` by path, as ``git ls-tree`` lists it: modes and ids, submodules too."""
    tree = {}
    for line in run_git(repo, "ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")[:-1]:
        about, _, path = line.partition(b"\t")
        mode, _, blob = about.split(b" ")
        tree[path] = TreeEntry(mode.decode(), blob.decode())
    return tree


def parse_log(tokens: Iterable[bytes]) -> Iterator[LogEntry]:
    """The lines of ``git log --raw -z --format='%H %ct'``, from its output split at NUL bytes.

    After each commit's id and time come its lines: modes, ids and the kind of change begin with a colon, and the path
    follows as the next token. A path may be any bytes and begin in any way, so it is known by its place alone.
    """
    step, commit, time = 0, "", 0
    remaining = iter(tokens)
    for token in remaining:
        # git puts a line feed, as ever, between what it says of a commit and the changes.
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
