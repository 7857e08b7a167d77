"""The text of a version in headers and queries: ``PARTITION-BRANCH-SEQ``, the branch in hex. Pure."""

from __future__ import annotations

import re
from typing import Any

from tailrace.model import Version, VersionRange
from tailrace.model.failover import SEQ_MAX
from tailrace_server.serving.board.pages import BadRequest

_VERSION = re.compile(r"([0-9]{1,9})-([0-9a-f]{32})-([0-9]{1,20})")
_SHOWN_CHARS_MAX = 100


def version_text(version: Version) -> str:
    """Returns the text of a version."""
    return f"{version.partition}-{version.branch.hex()}-{version.seq}"


def etag(version: Version) -> str:
    """Returns the entity tag of a version: its text in quotes."""
    return f'"{version_text(version)}"'


def parse_version(what: str, text: str) -> Version:
    """Returns the version that ``text`` names. ``what`` names the source for the error. Raises BadRequest."""
    found = _VERSION.fullmatch(text)
    if found is None or int(found[3]) > SEQ_MAX:
        raise BadRequest(
            f"{what} is {text!r:.{_SHOWN_CHARS_MAX}}, and a version is PARTITION-BRANCH-SEQ, as an ETag has it"
        )
    partition, branch, seq = found.groups()
    return Version(int(partition), bytes.fromhex(branch), int(seq))


def version_json(version: Version) -> dict[str, Any]:
    """Returns a version as a JSON object."""
    return {"version": version_text(version), "partition": version.partition, "seq": version.seq}


def range_json(versions: VersionRange) -> dict[str, Any]:
    """Returns the versions of a write to one partition as a JSON object."""
    return {
        "partition": versions.partition,
        "branch": versions.branch.hex(),
        "first_seq": versions.first_seq,
        "last_seq": versions.last_seq,
    }
