"""The formats of files of rows."""

from __future__ import annotations

import enum
from pathlib import PurePath

from tailrace.cli.errors import WrongUsage

STDIO = "-"
# A file of this suffix is compressed; the suffix before it names the format. Parquet and Arrow compress by themselves.
GZIP_SUFFIX = ".gz"


class Format(enum.StrEnum):
    """The formats, and the choices of --format."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"

    @property
    def is_text(self) -> bool:
        """Whether a file has lines. The others need pyarrow."""
        return self in (Format.JSONL, Format.CSV)


_SUFFIXES = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".arrows": Format.ARROW,
    ".feather": Format.ARROW,
}


def is_gzip(path: str) -> bool:
    """Tells whether the name of a file says that it is compressed with gzip."""
    return path != STDIO and path.lower().endswith(GZIP_SUFFIX)


def format_of(path: str, named: Format | None) -> Format:
    """Returns the format that was ``named``, or that the file's name tells. JSON lines for standard input or output.

    Raises WrongUsage if the name tells none, or if a compressed file has no lines.
    """
    found = named
    if found is None and path == STDIO:
        return Format.JSONL
    if found is None:
        stem = path[: -len(GZIP_SUFFIX)] if is_gzip(path) else path
        found = _SUFFIXES.get(PurePath(stem).suffix.lower())
    if found is None:
        raise WrongUsage(f"{path}: the name tells no format; add --format {', '.join(Format)}")
    if is_gzip(path) and not found.is_text:
        raise WrongUsage(f"{path}: {found} compresses by itself; write it without {GZIP_SUFFIX}")
    return found
