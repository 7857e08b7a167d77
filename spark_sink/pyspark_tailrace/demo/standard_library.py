"""The sources of Python's standard library: the demonstration's input without the history of a repository."""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_tailrace.demo.changes import Change, Content, TreeEntry, encode_value, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# In some installations, packages are below the library's folder. They are not part of it.
NOT_THE_LIBRARY = {"site-packages", "dist-packages", "__pycache__"}


def _library_folder() -> Path:
    return Path(sysconfig.get_path("stdlib"))


@dataclass(frozen=True, slots=True)
class StandardLibrary:
    """Every ``.py`` file below ``root``, as a new path. ``note`` is the reason for not using a repository."""

    note: str
    root: Path = field(default_factory=_library_folder)

    @property
    def title(self) -> str:
        return f"the standard library of Python {platform.python_version()}, {self.steps:,} files"

    @property
    def steps(self) -> int:
        return sum(1 for _ in self._files())

    def count(self) -> int:
        """Returns the number of changes, one for each file."""
        return self.steps

    def changes(self) -> Iterator[Change]:
        """Yields a change for each file, in the order of the paths. Memory: one file."""
        for step, path in enumerate(self._files(), start=1):
            content = _content(path)
            about = Content(len(content), text_of(content))
            time = int(path.lstat().st_mtime)
            yield Change(self._key(path), encode_value(_entry(path, content), about, None, time), step)

    def expected(self) -> dict[bytes, TreeEntry]:
        """Returns the present files."""
        return {self._key(path): _entry(path, _content(path)) for path in self._files()}

    def _files(self) -> Iterator[Path]:
        for folder, below, names in os.walk(self.root):
            below[:] = sorted(set(below) - NOT_THE_LIBRARY)
            yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))

    def _key(self, path: Path) -> bytes:
        return os.fsencode(path.relative_to(self.root))


def blob_id(content: bytes) -> str:
    """Returns git's id of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _content(path: Path) -> bytes:
    """Returns the content that git would store: for a symbolic link its target."""
    return os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()


def _entry(path: Path, content: bytes) -> TreeEntry:
    return TreeEntry(_mode(path.lstat().st_mode), blob_id(content))


def _mode(status: int) -> str:
    if stat.S_ISLNK(status):
        return "120000"
    return "100755" if status & stat.S_IXUSR else "100644"
