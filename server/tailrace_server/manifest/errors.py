"""The errors of manifests and FEED files."""

from __future__ import annotations

from tailrace.errors import TailraceError

_ADVICE = (
    "restore the directory from a backup. A member of a set needs no backup: start it with an empty directory instead, "
    "and it copies the rows of the others"
)


class ManifestDamaged(TailraceError):
    """A MANIFEST or a FEED can't be used; nothing has been changed. ``path`` is the file, ``why`` the fault."""

    def __init__(self, path: str, why: str, what_to_do: str = _ADVICE) -> None:
        super().__init__(f"{path} can't be used: {why}; {what_to_do}")
        self.path = path
        self.why = why
