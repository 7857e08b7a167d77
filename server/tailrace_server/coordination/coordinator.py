"""The protocol of a coordinator, and its values.

A coordinator holds small values by key, each with the revision of its last change. ``StaticStore`` keeps them in a file
of one node, ``EtcdStore`` in etcd. `tests/tailrace_server/coordination/test_contract.py` tests both by the same rules.

No safety relies on a coordinator. A lease may end early or late, and a restored coordinator may forget: the durable
promises of the voters decide who may lead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from tailrace.errors import TailraceError


class StoreError(TailraceError):
    """A request to the coordinator failed."""


class StoreUnreachable(StoreError):
    """No endpoint of the coordinator answers, or none in time. Nothing was changed."""


class StoreRefused(StoreError):
    """The coordinator refuses this node: its user, its password, its certificate, or its permissions."""


class StoreOutcomeUnknown(StoreError):
    """A transaction was sent, and its answer is lost: it may have been carried out."""


class LeaseGone(StoreError):
    """A transaction named a lease that has ended."""


class StoreDamaged(StoreError):
    """An answer of the coordinator, or a file of its values, cannot be read."""


class Entry(NamedTuple):
    """The value of a key, and the revision of its last change; None and 0 if there is no such key.

    ``created``: the revision at which the key was made. Keys that were made earlier have a lower one. ``lease``: the
    number of the lease that the key ends with; 0 if it stays.
    """

    value: bytes | None
    revision: int
    created: int = 0
    lease: int = 0


NO_ENTRY = Entry(None, 0)


class Unchanged(NamedTuple):
    """A comparison of a transaction: the last change of ``key`` was at ``revision``; 0: there is no such key."""

    key: str
    revision: int


class Put(NamedTuple):
    """A change of a transaction: ``key`` gets ``value``, or goes if that is None.

    ``lease``: the id of the lease with which the key ends; 0: of none.
    """

    key: str
    value: bytes | None
    lease: int = 0


class View(NamedTuple):
    """All keys of a prefix at ``revision``."""

    entries: Mapping[str, Entry]
    revision: int


class Lease(Protocol):
    """A lease: its keys go when it ends."""

    id: int

    async def keep(self) -> str:
        """Renews the lease until it has ended, or may have. Returns the reason."""
        ...

    async def revoke(self) -> None:
        """Ends the lease, and removes its keys. Raises StoreError."""
        ...


class Watch(Protocol):
    """The keys of a prefix as they change."""

    async def next(self) -> View:
        """Returns the present keys at the first call, and then waits for a change since the last call.

        Several changes may come as one. If the coordinator does not answer, it is asked again until it does.
        """
        ...


class Coordinator(Protocol):
    """A store of small values with transactions, leases and watches."""

    async def get(self, key: str) -> Entry:
        """Returns the value of ``key`` as of this call or later. Raises StoreError."""
        ...

    async def txn(self, comparisons: Sequence[Unchanged], puts: Sequence[Put]) -> bool:
        """Makes all changes at once if all comparisons hold. Returns whether they held.

        Raises:
            StoreOutcomeUnknown: The changes may have been made.
            LeaseGone: A put names a lease that has ended. Nothing was changed.
            StoreError: Nothing was changed.
        """
        ...

    async def lease(self, ttl_s: int) -> Lease:
        """Returns a new lease, which ends after ``ttl_s`` seconds unless `Lease.keep` renews it. Raises StoreError."""
        ...

    def watch(self, prefix: str) -> AbstractAsyncContextManager[Watch]:
        """Watches the keys that begin with ``prefix``."""
        ...
