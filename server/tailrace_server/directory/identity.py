"""NODE: the ids of a data directory, which are made once."""

from __future__ import annotations

import json
from typing import NamedTuple

import xxhash

from tailrace.errors import TailraceError
from tailrace_server.directory.sealed import why_damaged
from tailrace_server.host.disk import Disk, read_file, write_atomically
from tailrace_server.host.randomness import Randomness

FILE_NAME = "NODE"
FORMAT_VERSION = 1


class Identity(NamedTuple):
    """Three ids of 16 bytes: of the cluster (made by its founder), of the node, and of this directory's data."""

    cluster_id: bytes
    node_id: bytes
    placement_id: bytes


class BadDirectory(TailraceError):
    """A data directory cannot be used; the message says what to do."""


class Incomplete(BadDirectory):
    """A part of a data directory is missing that its other files name. No file was changed."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            f"{what} is missing: {why}. Check whether a volume is not mounted, or files were removed or copied, and "
            "correct that, or restore a backup with `tailrace restore`. `tailrace repair` keeps the remaining rows and "
            "lists the lost ones"
        )


def new_identity(randomness: Randomness) -> Identity:
    """Returns the ids of a new directory; ``store`` writes them."""
    return Identity(randomness.token(16), randomness.token(16), randomness.token(16))


def load(disk: Disk, directory: str) -> Identity:
    """Returns the directory's identity. Raises BadDirectory, and FileNotFoundError if it has no NODE."""
    path = f"{directory}/{FILE_NAME}"
    return _parse(read_file(disk, path), path)


def renew(disk: Disk, directory: str, randomness: Randomness) -> Identity:
    """Gives the directory new ids, of another node of the same cluster, durably. Raises as ``load``."""
    identity = Identity(load(disk, directory).cluster_id, randomness.token(16), randomness.token(16))
    store(disk, directory, identity)
    return identity


def join_cluster(disk: Disk, directory: str, identity: Identity, cluster_id: bytes) -> Identity:
    """Makes a new directory a node of another cluster, durably."""
    joined = identity._replace(cluster_id=cluster_id)
    store(disk, directory, joined)
    return joined


def store(disk: Disk, directory: str, identity: Identity) -> None:
    """Writes NODE durably. If it raises OSError, the old ids are unchanged."""
    ids = {name: id.hex() for name, id in identity._asdict().items()}
    value = {"version": FORMAT_VERSION, **ids, "checksum": _checksum(identity)}
    write_atomically(disk, f"{directory}/{FILE_NAME}", json.dumps(value, indent=1).encode() + b"\n")


def _checksum(identity: Identity) -> str:
    """Returns XXH3-64 of the three ids in their order, which detects changed digits."""
    return f"{xxhash.xxh3_64_intdigest(b''.join(identity)):016x}"


def _parse(data: bytes, path: str) -> Identity:
    try:
        value = json.loads(data)
        if value["version"] != FORMAT_VERSION:
            raise BadDirectory(f"{path} has version {value['version']}; this program reads version {FORMAT_VERSION}")
        identity = Identity(*(bytes.fromhex(value[name]) for name in Identity._fields))
        if value.keys() - {"version", "checksum", *Identity._fields}:
            raise ValueError("it has unknown members")
        if any(len(id) != 16 for id in identity):
            raise ValueError("an id is not 16 bytes")
        if value.get("checksum", _checksum(identity)) != _checksum(identity):
            raise ValueError("its checksum is wrong")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadDirectory(
            f"{path} is damaged ({why_damaged(error)}): restore it, or the directory, from a backup"
        ) from None
    return identity
