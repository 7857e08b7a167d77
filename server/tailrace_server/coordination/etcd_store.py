"""The coordinator in etcd (v3), over its HTTP gateway."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

import trio

from tailrace_server.coordination.coordinator import (
    NO_ENTRY,
    Entry,
    LeaseGone,
    Put,
    StoreDamaged,
    StoreError,
    StoreUnreachable,
    Unchanged,
    View,
)
from tailrace_server.coordination.etcd_codec import (
    Newest,
    Watched,
    encode,
    entries_of,
    header_of,
    newest_in,
    newest_of,
    newest_range,
    number,
    prefix_range,
    txn_body,
    watched_of,
)
from tailrace_server.coordination.etcd_gateway import EtcdGateway, Lines
from tailrace_server.coordination.store_state import StoreEvent, StoreHealth
from tailrace_server.coordination.store_url import StoreUrl

log = logging.getLogger("tailrace.server")

# The keys that one watch may have.
KEYS_MAX = 10_000
# The seconds of silence after which a watch asks whether it has missed a change: a middleman may have dropped the
# connection without a word. Half of a lease, so that a node that is gone is not taken for one that is there for long.
PING_S = 2.0
# The seconds that a change which the question finds has to come by the watch.
LATE_S = 0.5
# The first and the longest pause between two tries.
_PAUSE_S = 0.1
_PAUSE_S_MAX = 2.0


class EtcdStore:
    """A coordinator in etcd. Each node has one, and shares it among its tasks."""

    def __init__(self, url: StoreUrl, health: StoreHealth) -> None:
        """Raises StoreRefused if a certificate cannot be read. ``aclose`` ends its connections."""
        self.gateway = EtcdGateway(url, health)
        self.health = health

    async def aclose(self) -> None:
        """Ends all connections."""
        await self.gateway.aclose()

    async def get(self, key: str) -> Entry:
        """Returns the value of ``key``, confirmed by a majority of etcd."""
        return entries_of(await self.gateway.ask("kv/range", {"key": encode(key)})).get(key, NO_ENTRY)

    async def txn(self, comparisons: Sequence[Unchanged], puts: Sequence[Put]) -> bool:
        """Makes all changes if all comparisons hold."""
        answer = await self.gateway.ask("kv/txn", txn_body(comparisons, puts), changes=True)
        self.health.note(StoreEvent.WROTE, "")
        return answer.get("succeeded") is True

    async def lease(self, ttl_s: int) -> EtcdLease:
        """Returns a new lease. One whose answer is lost ends by itself."""
        asked = trio.current_time()
        answer = await self.gateway.ask("lease/grant", {"TTL": str(ttl_s)})
        id, granted = number(answer, "ID"), number(answer, "TTL")
        if id <= 0 or granted <= 0:
            raise StoreDamaged(f"etcd granted lease {id} for {granted} s")
        return EtcdLease(self, id, granted, asked)

    @contextlib.asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[EtcdWatch]:
        """Watches the keys that begin with ``prefix``."""
        watch = EtcdWatch(self.gateway, prefix)
        try:
            yield watch
        finally:
            await watch.aclose()


class EtcdLease:
    """A lease of etcd."""

    def __init__(self, store: EtcdStore, id: int, ttl_s: int, asked: float) -> None:
        """``asked``: the time of the request for it, from which it counts here."""
        self._gateway = store.gateway
        self._restores = store.gateway.restores
        self.id = id
        self.ttl_s = ttl_s
        self.ends = asked + ttl_s  # not later than at etcd, as far as the clocks run alike

    async def keep(self) -> str:
        """Renews the lease three times in its time to live, until it has ended or may have. Returns the reason."""
        pause = self.ttl_s / 3
        while True:
            await trio.sleep(max(0.0, min(pause, self.ends - trio.current_time())))
            asked = trio.current_time()
            if asked >= self.ends:
                why = f"it was not renewed for {self.ttl_s} s"
                self._gateway.health.note(StoreEvent.LEASE_ENDED, f"this node's lease has ended: {why}")
                return why
            if self._gateway.restores != self._restores:
                return "etcd was restored"
            try:
                with trio.move_on_at(self.ends) as scope:
                    left = await self._renew()
                if scope.cancelled_caught:
                    continue
            except LeaseGone:
                left = 0
            except StoreError:
                pause = _PAUSE_S
                continue
            if left <= 0:
                self._gateway.health.note(StoreEvent.LEASE_ENDED, "etcd ended this node's lease early")
                return "etcd ended it early"
            self.ends, pause = asked + left, self.ttl_s / 3

    async def _renew(self) -> int:
        answer = await self._gateway.ask("lease/keepalive", {"ID": str(self.id)})
        result = answer.get("result")
        return number(result, "TTL") if isinstance(result, dict) else 0

    async def revoke(self) -> None:
        """Ends the lease, and removes its keys. Raises StoreError."""
        with contextlib.suppress(LeaseGone):
            await self._gateway.ask("lease/revoke", {"ID": str(self.id)})


class EtcdWatch:
    """A watch of etcd. It belongs to one task.

    After each break all keys are read again, so that no event of a restored or compacted etcd is missed.
    """

    def __init__(self, gateway: EtcdGateway, prefix: str) -> None:
        self._gateway = gateway
        self._range = prefix_range(prefix)
        self._view: View | None = None  # as it was returned last
        self._stream = contextlib.AsyncExitStack()
        self._lines: Lines | None = None
        self._entries: dict[str, Entry] = {}
        self._revision = 0

    async def aclose(self) -> None:
        """Ends the stream."""
        self._lines = None
        await self._stream.aclose()

    async def next(self) -> View:
        """Returns the keys once they differ from those of the last call."""
        pause = _PAUSE_S
        while True:
            try:
                if self._lines is None:
                    await self._begin()
                else:
                    await self._receive(self._lines)
                pause = _PAUSE_S
            except _Missed as error:
                log.warning("the cluster store: %s", error)
                self._gateway.health.note(StoreEvent.WATCH_LOST, "")
                await self.aclose()
                continue
            except StoreError as error:
                await self.aclose()
                if isinstance(error, StoreUnreachable):
                    self._gateway.prefer_another()
                await trio.sleep(pause)
                pause = min(2 * pause, _PAUSE_S_MAX)
                continue
            if self._view is None or self._view.entries != self._entries:
                self._view = View(dict(self._entries), self._revision)
                return self._view

    async def _begin(self) -> None:
        """Reads all keys, and opens a stream of the changes after them."""
        answer = await self._gateway.ask("kv/range", {**self._range, "limit": str(KEYS_MAX)})
        if answer.get("more"):
            raise StoreDamaged(f"more than {KEYS_MAX} keys are below the cluster's prefix")
        self._entries, self._revision = entries_of(answer), header_of(answer).revision
        create = {**self._range, "start_revision": str(self._revision + 1)}
        self._lines = await self._stream.enter_async_context(self._gateway.stream("watch", {"create_request": create}))
        self._gateway.health.note(StoreEvent.READ, "")

    async def _receive(self, lines: Lines) -> None:
        """Waits for a message, and applies it. Raises StoreError, also if the watch has missed a change."""
        message = await self._message(lines)
        if message.compacted:
            self._gateway.health.note(StoreEvent.COMPACTED, "etcd compacted changes before this node had read them")
        if message.ended:
            raise StoreUnreachable(f"the watch ended: {message.ended}")
        # Etcd sends each change after the read once, in order. A message's own revision says nothing of them: the first
        # one tells etcd's revision as the watch began, before the changes between the read and that.
        for key, entry in message.changes:
            self._entries.pop(key, None)
            if entry.value is not None:
                self._entries[key] = entry
            self._revision = entry.revision

    async def _message(self, lines: Lines) -> Watched:
        """Returns the next message. Asks etcd beside the wait whether there is something that has not come."""
        failure: StoreError | None = None
        message: Watched | None = None

        async def ping(scope: trio.CancelScope) -> None:
            nonlocal failure
            try:
                await self._miss_nothing()
            except StoreError as error:
                failure = error  # raised below, outside of the nursery, which would make a group of it
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ping, nursery.cancel_scope)
            try:
                message = watched_of(await lines.next())
            except StoreError as error:
                failure = error
            nursery.cancel_scope.cancel()
        if message is not None:
            return message
        assert failure is not None, "the wait has ended"
        raise failure

    async def _miss_nothing(self) -> None:
        """Asks again and again whether the keys are those that the watch has told. Raises StoreError if they are not.

        A cancelled read of the stream would end it, so this runs beside one.
        """
        held = newest_of(self._entries)
        while True:
            await trio.sleep(PING_S)
            if await self._newest() == held:
                continue
            await trio.sleep(LATE_S)
            if await self._newest() != held:
                raise _Missed("the watch is silent, and keys have changed: its connection was lost on the way")

    async def _newest(self) -> Newest:
        return newest_in(await self._gateway.ask("kv/range", newest_range(self._range)))


class _Missed(StoreError):
    """The watch did not tell of a change."""
