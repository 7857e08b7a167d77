"""Makes a git repository of many commits, for ``make demo REPO=PATH``, of pieces of Python's standard library.

    .venv/bin/python bench/_large_repository.py PATH
    make demo REPO=PATH

30,000 commits have about 105,000 changes of paths with 1.4 GB of text; the same ones for the same seed and Python.
"""

from __future__ import annotations

import random
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

CHANGES_MAX = 6  # of a commit
NEW_SHARE, DELETED_SHARE = 0.28, 0.03
MEAN_BYTES = 13_500
BYTES_MAX = 64 * 1024  # as much of a text as the demonstration takes


def library_text() -> bytes:
    """All sources of the standard library, one after the other."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    return b"\n".join(path.read_bytes() for path in paths)


def commands(commits: int, seed: int) -> Iterator[bytes]:
    """What ``git fast-import`` is told."""
    rnd, text, paths = random.Random(seed), library_text(), list[bytes]()
    for number in range(commits):
        message = b"Change %d" % number
        yield b"commit refs/heads/main\ncommitter Bench <bench@example.org> %d +0000\n" % (1_600_000_000 + 60 * number)
        yield b"data %d\n%b\n" % (len(message), message)
        changed = set[bytes]()
        for _ in range(rnd.randint(1, CHANGES_MAX)):
            kind = rnd.random()
            if not paths or kind < NEW_SHARE:
                path = b"src/%02d/%02d/part%d.py" % (rnd.randrange(40), rnd.randrange(20), len(paths))
                paths.append(path)
            elif kind < NEW_SHARE + DELETED_SHARE:
                path = paths.pop(rnd.randrange(len(paths)))
                if path not in changed:
                    yield b"D %b\n" % path
                continue
            else:
                path = rnd.choice(paths)
            if path in changed:
                continue
            changed.add(path)
            size = min(round(rnd.expovariate(1 / MEAN_BYTES)) + 100, BYTES_MAX)
            begin = rnd.randrange(len(text) - size)
            yield b"M 100644 inline %b\ndata %d\n%b\n" % (path, size, text[begin : begin + size])


def main(
    path: Annotated[Path, typer.Argument(help="Where to make it; nothing must be there.")],
    commits: int = 30_000,
    seed: int = 1,
) -> None:
    """Makes the repository."""
    if path.exists():
        raise typer.BadParameter(f"{path} is there already")
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(path)], check=True)
    importing = ["git", "-C", str(path), "fast-import", "--quiet"]
    with subprocess.Popen(importing, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for command in commands(commits, seed):
            process.stdin.write(command)
        process.stdin.close()
    if process.returncode:
        raise typer.Exit(1)
    subprocess.run(["git", "-C", str(path), "reset", "--quiet", "--hard"], check=True)


if __name__ == "__main__":
    typer.run(main)
