"""What the demonstration feeds: a path of a source tree has now this content, or is gone.

The key is the path, as bytes, from the top of the tree. The value is UTF-8 JSON:

    {"mode": "100644", "blob": "<id>", "size": 412, "commit": "<id>", "time": 1700000000, "text": "..."}

mode    as git writes it: 100644, 100755 (executable), 120000 (symbolic link), 160000 (submodule)
blob    the id of the content, as in git; of a submodule the id of the commit that it stands at
size    of the content, bytes; null for a submodule, whose content is elsewhere
commit  the id of the commit; null where there is no history
time    of the commit, or of the file where there is no history; seconds since 1970 UTC
text    the content, up to 64 KiB and never within a character; null where it is no text, which is UTF-8 without NUL
"""

from __future__ import annotations

import json
from typing import NamedTuple

TEXT_BYTES_MAX = 64 * 1024  # of a longer text the beginning is enough to be found by

SUBMODULE_MODE = "160000"


class TreeEntry(NamedTuple):
    """What a source tree has at a path: ``mode`` and ``blob`` as in the value."""

    mode: str
    blob: str


class Content(NamedTuple):
    """What a value says of a blob's content: its size in bytes and, where it is text, its beginning."""

    size: int | None
    text: str | None


class Change(NamedTuple):
    """A change of one path; ``value`` is None where the path is gone.

    ``step`` counts what the history consists of (commits, files) from 1, for a progress bar.
    """

    key: bytes
    value: bytes | None
    step: int


NO_CONTENT = Content(None, None)


def text_of(content: bytes) -> str | None:
    """The beginning of the whole ``content`` where it is text, else None."""
    if b"\0" in content:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return text if len(content) <= TEXT_BYTES_MAX else beginning_of(content)


def beginning_of(content: bytes) -> str:
    """The first 64 KiB of a valid UTF-8 text, without a character that is cut there."""
    return content[:TEXT_BYTES_MAX].decode(errors="ignore")


def encode_value(entry: TreeEntry, content: Content, commit: str | None, time: int) -> bytes:
    """The value of a path that is there."""
    fields = {
        "mode": entry.mode,
        "blob": entry.blob,
        "size": content.size,
        "commit": commit,
        "time": time,
        "text": content.text,
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
