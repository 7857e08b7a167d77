"""The files of the console's page, read once and served from memory."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
}
_NAME = re.compile(r"(?:vendor/)?[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)


class StaticFile(NamedTuple):
    """A file: its bytes, their type, and a tag that changes with them."""

    data: bytes
    content_type: str
    etag: str


def read_files(folder: Path = FOLDER) -> Mapping[str, StaticFile]:
    """Returns the files of ``folder`` and of its folder ``vendor``, by name. Files of other types are left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix in _TYPES and _NAME.fullmatch(name) and path.is_file():
            data = path.read_bytes()
            found[name] = StaticFile(data, _TYPES[path.suffix], f'"{hashlib.sha256(data).hexdigest()[:32]}"')
    return found


def is_current(file: StaticFile, if_none_match: str) -> bool:
    """Returns whether a browser that sends this ``If-None-Match`` has the file."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return file.etag in tags or "*" in tags
