"""Packs and unpacks golden directories: archives whose bytes depend on the files alone."""

from __future__ import annotations

import tarfile
from pathlib import Path

HERE = Path(__file__).parent
# Locks a process, and space that means nothing.
_LEFT_OUT = {"LOCK", "RESERVE", "admin.token"}


def releases():
    """The releases whose golden data are here, oldest first."""
    found = [path.name for path in HERE.iterdir() if (path / "told.json").exists()]
    return sorted(found, key=lambda name: [int(part) for part in name.split(".")])


def pack(source, archive):
    """Packs a directory, or a file."""
    paths = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.name not in _LEFT_OUT)
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in paths:
            name = path.name if path == source else str(path.relative_to(source))
            entry = tar.gettarinfo(path, name)
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname, entry.mode = 0, 0, 0, "", "", 0o755
            if path.is_file():
                with path.open("rb") as file:
                    tar.addfile(entry, file)
            else:
                tar.addfile(entry)


def unpack(release, name, target):
    """Unpacks an archive of a release into a directory, and returns that."""
    target.mkdir(parents=True, exist_ok=True)
    # The first releases of Python 3.11 extract without a filter; the archives are this repository's own.
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(HERE / release / f"{name}.tar.xz") as tar:
        tar.extractall(target, **safely)
    return target
