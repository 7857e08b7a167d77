"""The findings of ``verify``, by file. Pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# The form in which findings name a feed.
_FEED = re.compile(r"\bfeed ([0-9a-f]{32})\b")


def feed_text(feed_id: bytes, name: str | None) -> str:
    """Returns a feed's name and id as a message shows them; the id alone if the name is not known."""
    return f"feed {feed_id.hex()}" if name is None else f"feed {name} ({feed_id.hex()})"


class Severity(enum.StrEnum):
    """How bad a finding is."""

    PROBLEM = "problem"  # data are lost, or a node would not start or not serve them
    NOTE = "note"  # the next start handles it by itself


class Finding(NamedTuple):
    """``what`` was found at ``offset`` (bytes; None: in the file as a whole), and what it ``means``."""

    severity: Severity
    offset: int | None
    what: str
    means: str


@dataclass(slots=True)
class FileResult:
    """A file, by its path below the directory, and its findings. A missing file has 0 bytes.

    ``version`` is that of its format; None if it has none, or is damaged.
    """

    path: str
    kind: str
    nbytes: int = 0
    version: int | None = None
    findings: list[Finding] = field(default_factory=list)

    def problem(self, what: object, means: str, offset: int | None = None) -> None:
        """Adds a problem."""
        self.findings.append(Finding(Severity.PROBLEM, offset, str(what), means))

    def note(self, what: object, means: str, offset: int | None = None) -> None:
        """Adds a note."""
        self.findings.append(Finding(Severity.NOTE, offset, str(what), means))

    @property
    def state(self) -> str:
        """``"ok"``, or the worst of the findings."""
        severities = {finding.severity for finding in self.findings}
        return next((s.value for s in Severity if s in severities), "ok")

    def to_json(self) -> dict[str, Any]:
        """Returns the file as a line of ``--json``."""
        findings = [{**finding._asdict(), "severity": finding.severity.value} for finding in self.findings]
        return {
            "file": self.path,
            "kind": self.kind,
            "bytes": self.nbytes,
            "version": self.version,
            "state": self.state,
            "findings": findings,
        }


class Report:
    """The files of a directory, in the order in which they were read."""

    def __init__(self) -> None:
        self.files: list[FileResult] = []

    def file(self, path: str, kind: str, nbytes: int = 0) -> FileResult:
        """Adds a file, and returns it for its findings."""
        result = FileResult(path, kind, nbytes)
        self.files.append(result)
        return result

    def name_feeds(self, name_of: Callable[[bytes], str | None]) -> None:
        """Adds its name to each feed id in the findings, if ``name_of`` knows it."""
        names: dict[str, str | None] = {}

        def named(match: re.Match[str]) -> str:
            feed_id = bytes.fromhex(match[1])
            if match[1] not in names:
                names[match[1]] = name_of(feed_id)
            return feed_text(feed_id, names[match[1]])

        for file in self.files:
            file.findings = [
                found._replace(what=_FEED.sub(named, found.what), means=_FEED.sub(named, found.means))
                for found in file.findings
            ]

    @property
    def problems(self) -> list[tuple[FileResult, Finding]]:
        """Every problem."""
        return self._of(Severity.PROBLEM)

    @property
    def notes(self) -> list[tuple[FileResult, Finding]]:
        """Every note."""
        return self._of(Severity.NOTE)

    def _of(self, severity: Severity) -> list[tuple[FileResult, Finding]]:
        return [(file, found) for file in self.files for found in file.findings if found.severity == severity]

    def kinds(self) -> Iterable[tuple[str, int, int, int]]:
        """Yields for each kind of file: its name, the number of files, their bytes, and the number with a problem."""
        for kind in dict.fromkeys(file.kind for file in self.files):
            files = [file for file in self.files if file.kind == kind]
            bad = sum(file.state == Severity.PROBLEM for file in files)
            yield kind, len(files), sum(file.nbytes for file in files), bad

    def versions(self, kind: str) -> list[int]:
        """Returns the versions of the files of a kind, rising."""
        return sorted({file.version for file in self.files if file.kind == kind and file.version is not None})

    def summary(self) -> dict[str, Any]:
        """Returns the last line of ``--json``."""
        return {
            "files": len(self.files),
            "bytes": sum(file.nbytes for file in self.files),
            "problems": len(self.problems),
            "notes": len(self.notes),
            "ok": not self.problems,
        }
