"""Who a data directory is: ids that are made once and stay with it."""

from __future__ import annotations

import json
from typing import NamedTuple

import xxhash

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


class Incomplete(BadDirectory):
    """Something of a data directory is missing, though its files tell of it; nothing that is left has been changed."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            f"{what} is missing: {why}. Is a volume not mounted, or was something removed or copied? Put it right, or "
            "restore a backup with `tailrace restore`; `tailrace repair` keeps what is left, and lists what is lost"
        )


def new_identity(randomness: Randomness) -> Identity:
    """Ids of a new directory; ``store`` makes them the directory's."""
    return Identity(randomness.token(16), randomness.token(16), randomness.token(16))


def load(disk: Disk, directory: str) -> Identity:
    """The directory's identity. Raises BadDirectory, and FileNotFoundError where it has none."""
    path = f"{directory}/{FILE_NAME}"
    return _parse(read_file(disk, path), path)


def renew(disk: Disk, directory: str, randomness: Randomness) -> Identity:
    """Makes the directory another node's, of the same cluster; on disk before this returns. Raises as ``load``."""
    identity = Identity(load(disk, directory).cluster_id, randomness.token(16), randomness.token(16))
    store(disk, directory, identity)
    return identity


def join_cluster(disk: Disk, directory: str, identity: Identity, cluster_id: bytes) -> Identity:
    """Makes a new directory one of another cluster; on disk before this returns."""
    joined = identity._replace(cluster_id=cluster_id)
    store(disk, directory, joined)
    return joined


def store(disk: Disk, directory: str, identity: Identity) -> None:
    """Writes NODE; on disk when this returns. OSError: the directory is whose it was."""
    ids = {name: id.hex() for name, id in identity._asdict().items()}
    value = {"version": FORMAT_VERSION, **ids, "checksum": _checksum(identity)}
    write_atomically(disk, f"{directory}/{FILE_NAME}", json.dumps(value, indent=1).encode() + b"\n")


def _checksum(identity: Identity) -> str:
    """XXH3-64 of the three ids in their order: a digit that has changed is still a digit."""
    return f"{xxhash.xxh3_64_intdigest(b''.join(identity)):016x}"


def _parse(data: bytes, path: str) -> Identity:
    try:
        value = json.loads(data)
        if value["version"] != FORMAT_VERSION:
            raise BadDirectory(f"{path} has version {value['version']}; this program reads version {FORMAT_VERSION}")
        identity = Identity(*(bytes.fromhex(value[name]) for name in Identity._fields))
        if value.keys() - {"version", "checksum", *Identity._fields}:
            raise ValueError("it has members that are not known")
        if any(len(id) != 16 for id in identity):
            raise ValueError("an id is not 16 bytes")
        if value.get("checksum", _checksum(identity)) != _checksum(identity):
            raise ValueError("its checksum is wrong")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadDirectory(f"{path} is damaged ({error!r}): restore it, or the directory, from a backup") from None
    return identity
