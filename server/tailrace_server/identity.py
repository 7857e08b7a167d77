"""Who a data directory is: ids that are made once and stay with it."""

from __future__ import annotations

import json
from typing import NamedTuple

from tailrace.errors import TailraceError
from tailrace_server.host.disk import Disk, read_file, write_atomically
from tailrace_server.host.randomness import Randomness

FILE_NAME = "NODE"
FORMAT_VERSION = 1


class Identity(NamedTuple):
    """Three ids of 16 bytes: of the cluster (its founder made it), of the node, and of this directory's data."""

    cluster_id: bytes
    node_id: bytes
    placement_id: bytes


class BadDirectory(TailraceError):
    """A data directory cannot be used as it is; the message says what to do."""


def load_or_create(disk: Disk, directory: str, randomness: Randomness) -> Identity:
    """The directory's identity; a new one, on disk before this returns, where it has none."""
    path = f"{directory}/{FILE_NAME}"
    if disk.exists(path):
        return _parse(read_file(disk, path), path)
    identity = Identity(randomness.token(16), randomness.token(16), randomness.token(16))
    value = {"version": FORMAT_VERSION, **{name: id.hex() for name, id in identity._asdict().items()}}
    write_atomically(disk, path, json.dumps(value, indent=1).encode() + b"\n")
    return identity


def _parse(data: bytes, path: str) -> Identity:
    try:
        value = json.loads(data)
        if value["version"] != FORMAT_VERSION:
            raise BadDirectory(f"{path} has version {value['version']}; this program reads version {FORMAT_VERSION}")
        identity = Identity(*(bytes.fromhex(value[name]) for name in Identity._fields))
    except (ValueError, KeyError, TypeError) as error:
        raise BadDirectory(f"{path} is damaged ({error!r}): restore it, or the directory, from a backup") from None
    if any(len(id) != 16 for id in identity):
        raise BadDirectory(f"{path} is damaged (an id is not 16 bytes): restore it, or the directory, from a backup")
    return identity
