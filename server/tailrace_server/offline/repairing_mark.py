"""REPAIRING: the mark of a repair that has begun, by which a later repair continues it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace_server.directory import restored_marks as marks
from tailrace_server.directory.identity import BadDirectory
from tailrace_server.directory.sealed import seal, unseal
from tailrace_server.host.disk import read_file, write_atomically
from tailrace_server.manifest.fields import read_id

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk

_FORMAT = "tailrace repairing"
VERSION = 1
_TIME = re.compile(r"[0-9]{8}-[0-9]{6}")


class RepairingMark(NamedTuple):
    """The time and token of a repair, and the first and last new file of the journal when these are durable."""

    time: str
    token: bytes
    journal: tuple[int, int] | None

    def store(self, disk: Disk, data: str) -> None:
        members: dict[str, Any] = {"time": self.time, "token": self.token.hex(), "journal": self.journal}
        write_atomically(disk, os.path.join(data, marks.REPAIRING_NAME), seal(_FORMAT, VERSION, members))

    @classmethod
    def load(cls, disk: Disk, data: str) -> RepairingMark | None:
        path = os.path.join(data, marks.REPAIRING_NAME)
        if not disk.exists(path):
            return None
        try:
            members = unseal(read_file(disk, path), _FORMAT, VERSION)
            fresh = members["journal"]
            if not _TIME.fullmatch(members["time"]):
                raise ValueError(f"its time is {members['time']!r:.40}")
            token = read_id(members["token"])
            return cls(members["time"], token, None if fresh is None else (int(fresh[0]), int(fresh[1])))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise BadDirectory(
                f"{path} cannot be used ({error}): remove it, and repair again, which finds the remaining damage"
            ) from None
