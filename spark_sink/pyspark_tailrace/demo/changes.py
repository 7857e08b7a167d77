"""The mutations of the demonstration: a path of a source tree has new content, or is deleted.

The key is the path, as bytes, from the top of the tree. The value is UTF-8 JSON:

    {"mode": "100644", "blob": "<id>", "size": 412, "commit": "<id>", "time": 1700000000, "text": "..."}

mode    as git writes it: 100644, 100755 (executable), 120000 (symbolic link), 160000 (submodule)
blob    the id of the content, as in git; for a submodule the id of its commit
size    of the content, bytes; null for a submodule, whose content is elsewhere
commit  the id of the commit; null without a history
time    of the commit, or of the file without a history; seconds since 1970 UTC
text    the content, up to 64 KiB and never cut within a character; null unless it is UTF-8 without NUL
"""

from __future__ import annotations

import json
from typing import NamedTuple

TEXT_BYTES_MAX = 64 * 1024  # the beginning of a longer text is enough for a search

SUBMODULE_MODE = "160000"


class TreeEntry(NamedTuple):
    """A path's entry in a source tree: ``mode`` and ``blob`` as in the value."""

    mode: str
    blob: str


class Content(NamedTuple):
    """The size of a blob's content in bytes, and the beginning of its text; ``text`` is None if it is no text."""

    size: int | None
    text: str | None


class Change(NamedTuple):
    """A change of one path; ``value`` is None if the path was deleted.

    ``step`` counts the commits (or files) of the history from 1, for a progress bar.
    """

    key: bytes
    value: bytes | None
    step: int


NO_CONTENT = Content(None, None)


def text_of(content: bytes) -> str | None:
    """Returns the beginning of ``content``, or None if it is no text. ``content`` is the whole content."""
    if b"\0" in content:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return text if len(content) <= TEXT_BYTES_MAX else beginning_of(content)


def beginning_of(content: bytes) -> str:
    """Returns the first 64 KiB of a valid UTF-8 text, without a character that is cut at the end."""
    return content[:TEXT_BYTES_MAX].decode(errors="ignore")


def encode_value(entry: TreeEntry, content: Content, commit: str | None, time: int) -> bytes:
    """Returns the value of a path that exists."""
    fields = {
        "mode": entry.mode,
        "blob": entry.blob,
        "size": content.size,
        "commit": commit,
        "time": time,
        "text": content.text,
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
