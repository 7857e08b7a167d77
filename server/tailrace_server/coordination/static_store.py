"""A coordinator in a file of one node's data directory. Layout: docs/formats/cluster.md.

A node that uses etcd keeps its last knowledge of the set in such a file, CLUSTER, and starts by it while etcd is gone.
Keys of leases are in memory only: no lease outlives the process.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import trio
import xxhash

from tailrace_server.coordination.coordinator import (
    NO_ENTRY,
    Entry,
    LeaseGone,
    Put,
    StoreDamaged,
    Unchanged,
    View,
)
from tailrace_server.directory.sealed import why_damaged
from tailrace_server.host.disk import Buffer, Disk, read_file, write_atomically

FILE_NAME = "CLUSTER"
FORMAT_VERSION = 1


class StaticStore:
    """Keys in a file. Only its own methods change its fields."""

    def __init__(self, disk: Disk, path: str, write: Callable[[str, Buffer], None] | None = None) -> None:
        """Reads the file; it need not exist. Raises StoreDamaged, OSError.

        ``write`` replaces a file, as `write_atomically` of ``disk``, which is used without it.
        """
        self._path = path
        self._write: Callable[[str, Buffer], None] = partial(write_atomically, disk) if write is None else write
        self._entries, self._revision = _load(disk, path)
        self._leases: dict[int, _StaticLease] = {}
        self._lease_of: dict[str, int] = {}
        self._ids = itertools.count(1)
        self._changed = trio.Event()

    def write_by(self, write: Callable[[str, Buffer], None]) -> None:
        """Writes the file by another function from now on."""
        self._write = write

    async def get(self, key: str) -> Entry:
        """Returns the value of ``key``."""
        return self.read(key)

    def read(self, key: str) -> Entry:
        """Returns the value of ``key``, without waiting."""
        self._expire()
        return self._entries.get(key, NO_ENTRY)

    async def txn(self, comparisons: Sequence[Unchanged], puts: Sequence[Put]) -> bool:
        """Makes all changes if all comparisons hold, as `write`."""
        return self.write(comparisons, puts)

    def write(self, comparisons: Sequence[Unchanged], puts: Sequence[Put]) -> bool:
        """Makes all changes if all comparisons hold, durably when this returns. LeaseGone; OSError: nothing changed."""
        self._expire()
        if any(self._entries.get(key, NO_ENTRY).revision != revision for key, revision in comparisons):
            return False
        for put in puts:
            if put.lease and put.lease not in self._leases:
                raise LeaseGone(f"lease {put.lease} has ended")
        entries, lease_of, revision = dict(self._entries), dict(self._lease_of), self._revision + 1
        for put in puts:
            lease_of.pop(put.key, None)
            before = entries.pop(put.key, NO_ENTRY)
            if put.value is not None:
                entries[put.key] = Entry(put.value, revision, before.created or revision, put.lease)
                if put.lease:
                    lease_of[put.key] = put.lease
        self._become(entries, lease_of, revision)
        return True

    async def lease(self, ttl_s: int) -> _StaticLease:
        """Returns a new lease."""
        lease = _StaticLease(self, next(self._ids), ttl_s)
        self._leases[lease.id] = lease
        self._wake()
        return lease

    @contextlib.asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[_StaticWatch]:
        """Watches the keys that begin with ``prefix``."""
        yield _StaticWatch(self, prefix)

    def end(self, ids: set[int]) -> None:
        """Ends leases, and removes their keys."""
        for id in ids & self._leases.keys():
            self._leases.pop(id).ended.set()
        gone = {key for key, id in self._lease_of.items() if id in ids}
        if gone:
            entries = {key: entry for key, entry in self._entries.items() if key not in gone}
            lease_of = {key: id for key, id in self._lease_of.items() if key not in gone}
            self._become(entries, lease_of, self._revision + 1)

    def _expire(self) -> None:
        now = trio.current_time() if self._leases else 0.0
        self.end({id for id, lease in self._leases.items() if lease.ends <= now})

    def view(self, prefix: str) -> View:
        """Returns the keys that begin with ``prefix``."""
        self._expire()
        return View({key: entry for key, entry in self._entries.items() if key.startswith(prefix)}, self._revision)

    async def changed(self) -> None:
        """Waits for a change of any key, or for the end of the next lease."""
        ends = min((lease.ends for lease in self._leases.values()), default=float("inf"))
        with trio.CancelScope(deadline=ends):
            await self._changed.wait()

    def _become(self, entries: dict[str, Entry], lease_of: dict[str, int], revision: int) -> None:
        durable = {key: entry for key, entry in entries.items() if key not in lease_of}
        self._write(self._path, _to_bytes(durable, revision))
        self._entries, self._lease_of, self._revision = entries, lease_of, revision
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class _StaticLease:
    """A lease of a `StaticStore`."""

    def __init__(self, store: StaticStore, id: int, ttl_s: int) -> None:
        self._store = store
        self.id = id
        self._ttl_s = ttl_s
        self.ends = trio.current_time() + ttl_s
        self.ended = trio.Event()

    async def keep(self) -> str:
        """Renews the lease until it is revoked."""
        while not self.ended.is_set():
            if self.ends <= trio.current_time():
                return f"lease {self.id} was not renewed in time"
            self.ends = trio.current_time() + self._ttl_s
            with trio.move_on_after(self._ttl_s / 3):
                await self.ended.wait()
        return f"lease {self.id} was revoked"

    async def revoke(self) -> None:
        """Ends the lease, and removes its keys."""
        self._store.end({self.id})


class _StaticWatch:
    """A watch of a `StaticStore`."""

    def __init__(self, store: StaticStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._last: View | None = None

    async def next(self) -> View:
        """Returns the keys once they differ from those of the last call."""
        while True:
            view = self._store.view(self._prefix)
            if self._last is None or view.entries != self._last.entries:
                self._last = view
                return view
            await self._store.changed()


def _to_bytes(entries: dict[str, Entry], revision: int) -> bytes:
    value = {
        "version": FORMAT_VERSION,
        "revision": revision,
        "entries": {
            key: {
                "value": base64.b64encode(entry.value or b"").decode(),
                "revision": entry.revision,
                "created": entry.created,
            }
            for key, entry in sorted(entries.items())
        },
    }
    return json.dumps({**value, "checksum": _checksum(value)}, indent=1).encode() + b"\n"


def _checksum(value: dict[str, Any]) -> str:
    """XXH3-64 of all other members, as JSON in their order."""
    return f"{xxhash.xxh3_64_intdigest(json.dumps(value).encode()):016x}"


def check_store(disk: Disk, path: str) -> None:
    """Parses the file, if there is one. Raises StoreDamaged, OSError."""
    _load(disk, path)


def _load(disk: Disk, path: str) -> tuple[dict[str, Entry], int]:
    if not disk.exists(path):
        return {}, 0
    try:
        value = json.loads(read_file(disk, path))
        if value["version"] != FORMAT_VERSION:
            raise StoreDamaged(f"{path} has version {value['version']}; this program reads version {FORMAT_VERSION}")
        if value.pop("checksum") != _checksum(value):
            raise ValueError("its checksum is wrong")
        entries = {
            key: Entry(base64.b64decode(entry["value"], validate=True), int(entry["revision"]), int(entry["created"]))
            for key, entry in value["entries"].items()
        }
        return entries, int(value["revision"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreDamaged(
            f"{path} is damaged ({why_damaged(error)}): remove it while the coordinator answers; it is written anew"
        ) from None
