"""The start of a node: its directory is locked and recovered, and then it serves.

This file alone decides the order in which things are opened and made durable.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple

import trio

from tailrace.errors import NoSpace, TailraceError
from tailrace_server.config import Config
from tailrace_server.directory import restored_marks as marks
from tailrace_server.directory.identity import FILE_NAME as NODE_NAME
from tailrace_server.directory.identity import BadDirectory, Identity, load, new_identity
from tailrace_server.directory.identity import store as store_identity
from tailrace_server.directory.uptime_file import load_uptime
from tailrace_server.feeds import wholeness
from tailrace_server.feeds.catalog import Catalog
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.feeds.recovery import FeedRecovery
from tailrace_server.host.disk import Lock
from tailrace_server.host.garbage import Searches
from tailrace_server.journal import (
    Journal,
    RecordKind,
    Recovered,
    Reserve,
    TakenMark,
    find_clean,
    lock_directory,
    open_journal,
    remove_clean,
    why_unclean,
)
from tailrace_server.journal.held import HeldMark, load_held, remove_held
from tailrace_server.manifest import ManifestStore
from tailrace_server.node.node import Node
from tailrace_server.offline.format_versions import check_versions
from tailrace_server.partition.branching import begin_branch
from tailrace_server.partition.replica_apply import entries_through, settle_producers
from tailrace_server.replication.groups import Grouping, one_group
from tailrace_server.replication.membership import check_no_member, forget_following, has_followed, was_of_set
from tailrace_server.runtime.host import Host, system_host
from tailrace_server.state.memory import MemoryAccount
from tailrace_server.state.use_times import UseTimes
from tailrace_server.upkeep.storage import Storage

log = logging.getLogger("tailrace.server")

_RESTORED_IN_SET = (
    "{} was restored or repaired, and may lack writes that it has acknowledged as a member: give this node an empty "
    "directory, and its leader fills it. If the whole set is lost, make a new set of the backup: see 'A backup in a "
    "set' in the guide on replication"
)
_RESTORED_OF_SET = (
    "{} was restored or repaired, and is of a member of a set. Alone it leads another history of the set's cluster, "
    "and the set never gets what programs write to it. While the set serves, give the member an empty directory. To "
    "look into this one, or to make a new set of it, start it once with --restored, at an address that is no member's: "
    "see 'A backup in a set' in the guide on replication"
)


@contextlib.asynccontextmanager
async def open_node(config: Config, host: Host | None = None, grouping: Grouping | None = None) -> AsyncIterator[Node]:
    """Locks and recovers ``config.data``, then serves at ``config.listen`` while the body runs; stops cleanly after it.

    ``grouping``: the groups of the node; by default one. Raises DirectoryInUse, the errors of ``recover``, and OSError
    if the address cannot be had.
    """
    host = system_host(config) if host is None else host
    host.disk.make_directory(config.data)
    lock: Lock = lock_directory(host.disk, config.data)
    try:
        with _no_searches(host):
            node = recover(config, host, grouping)
        try:
            listener = await host.network.listen(*config.listen)
            try:
                node.begin(listener)
                with _bounded_searches(node):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(node.serve, listener)
                        yield node
                        with trio.CancelScope(shield=True):
                            await node.drain()
                        nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await node.storage.flusher.flush_for_stop()
            finally:
                with trio.CancelScope(shield=True):
                    await listener.aclose()
        finally:
            node.stop()
    finally:
        lock.close()


@contextlib.contextmanager
def _no_searches(host: Host) -> Iterator[None]:
    """Looks for no cyclic garbage in the body, whose objects live long."""
    if not host.owns_process:
        yield
        return
    gc.disable()  # else each search walks through all recovered objects
    try:
        yield
    finally:
        gc.enable()


def _bounded_searches(node: Node) -> contextlib.AbstractContextManager[None]:
    """Keeps recovered objects, and others that live long, out of the searches for garbage in the body."""
    if not node.host.owns_process:
        return contextlib.nullcontext()
    return Searches(node.feeds.count_partitions).bounded()


def prepare(config: Config, host: Host) -> Identity:
    """Returns the ids of a data directory, which are made, durably, if it is new.

    For a node that tells its ids before it starts. A new directory is left as by a crash at its first start. Raises
    DirectoryInUse, and as ``recover``.
    """
    disk, data = host.disk, config.data
    disk.make_directory(data)
    lock = lock_directory(disk, data)
    try:
        check_versions(disk, data)
        marks.check_usable(disk, data)
        if config.restored or marks.is_restored(disk, data):
            raise BadDirectory(_RESTORED_IN_SET.format(data))
        if disk.exists(os.path.join(data, NODE_NAME)):
            return load(disk, data)
        wholeness.check_is_new(disk, data)
        wholeness.warn_of_others(disk, data)
        journal, _ = open_journal(
            disk,
            os.path.join(data, "journal"),
            file_bytes_max=config.storage.journal_file_bytes_max,
            token=host.randomness.token,
            clock=host.clock.monotonic,
        )
        journal.close()
        identity = new_identity(host.randomness)
        store_identity(disk, data, identity)
        return identity
    finally:
        lock.close()


def recover(config: Config, host: Host, grouping: Grouping | None = None) -> Node:
    """Opens a data directory, and makes it if it is missing: identity, journal, feeds. The directory is locked already.

    After a stop that was not clean every partition of a node that is alone begins a new branch, durable before this
    returns. It does so once if the node followed another one before, since that one may write to the same branch. A
    node that is not alone starts as a follower, its logs as they are: the leader is not chosen here. Such a node
    refuses a directory that was restored or repaired, which may lack acknowledged rows. A node outside of a set refuses
    the directory of a member, also a restored one unless the configuration says ``restored``. All refuse a directory
    with a file of a later release, and change nothing. Raises BadDirectory,
    JournalDamaged, NoSpace, JournalFailed, OSError; then no durable row is lost.
    """
    grouping = one_group(config) if grouping is None else grouping
    membership_names = [settings.membership_name for settings in grouping.groups]
    check_versions(host.disk, config.data)
    marks.check_usable(host.disk, config.data)
    is_restored = marks.is_restored(host.disk, config.data)
    if not config.is_alone and (is_restored or config.restored):
        raise BadDirectory(_RESTORED_IN_SET.format(config.data))
    of_set = marks.is_marked(host.disk, config.data, marks.OF_SET_NAME)
    of_set = of_set or any(was_of_set(host.disk, config.data, name) for name in membership_names)
    if is_restored and of_set and not config.restored:
        raise BadDirectory(_RESTORED_OF_SET.format(config.data))
    was_member = any(host.disk.exists(os.path.join(config.data, name)) for name in membership_names)
    if config.restored or (is_restored and was_member):
        # It is no longer the member that it was: its promises and its vote belong to the earlier ids.
        marks.mark_restored(host.disk, config.data, host.randomness)
    is_restored = marks.is_restored(host.disk, config.data)
    found = _look(config, host, membership_names, is_restored=is_restored)
    try:
        return _recover(config, host, found, grouping)
    except NoSpace as error:
        # A node that cannot start on a full disk could not empty it either.
        if not _free_some(config, host):
            raise
        log.warning("%s: the start continues with the reserved space", error)
        return _recover(config, host, found, grouping)


class _Found(NamedTuple):
    """The contents of a directory's small files. ``taken`` is None for a new directory.

    ``held`` is the mark in HELD; None if there is no good one, or if the directory was restored or repaired since.
    ``followed``: the files of groups in which the node followed another one, and now is alone.
    """

    identity: Identity
    taken: TakenMark | None
    held: HeldMark | None
    is_restored: bool
    followed: tuple[str, ...] = ()


def _look(config: Config, host: Host, membership_names: Sequence[str], *, is_restored: bool) -> _Found:
    """Reads the small files, and changes nothing. Raises BadDirectory, OSError."""
    disk, data = host.disk, config.data
    if not disk.exists(os.path.join(data, NODE_NAME)):
        wholeness.check_is_new(disk, data)
        wholeness.warn_of_others(disk, data)
        return _Found(new_identity(host.randomness), None, None, is_restored)
    identity = load(disk, data)
    if not config.members:
        for name in membership_names:
            check_no_member(disk, data, identity.placement_id, name)
    if not is_restored:
        wholeness.check_journal(disk, data)
    held = None if is_restored else load_held(disk, data)
    own = identity.placement_id
    followed = tuple(name for name in membership_names if config.is_alone and has_followed(disk, data, own, name))
    return _Found(identity, find_clean(disk, data), held, is_restored, followed)


def _free_some(config: Config, host: Host) -> bool:
    """Frees the reserve for a full disk, and leftovers of interrupted flushes and compactions.

    Returns whether there was any.
    """
    had = Reserve(host.disk, config.data, config.storage.reserve_bytes).release()
    store = ManifestStore(host.disk, config.data)
    sizes = {SYSTEM_FEED_ID: 1} | {feed.info.feed_id: feed.info.partitions for feed in store.feeds()}
    for feed_id, partitions in sizes.items():
        for number in range(partitions):
            manifest = store.read(feed_id, number)
            had |= manifest is not None and bool(store.sweep(manifest))
    return had


def _recover(config: Config, host: Host, found: _Found, grouping: Grouping) -> Node:
    """Journal and feeds; may be tried again after NoSpace."""
    held = found.held
    journal, recovered = open_journal(
        host.disk,
        os.path.join(config.data, "journal"),
        file_bytes_max=config.storage.journal_file_bytes_max,
        token=host.randomness.token,
        clock=host.clock.monotonic,
        reached=held.journal if held is not None else (0, 0),
    )
    try:
        storage = _recover_storage(config, host, found, journal, recovered)
        node = Node(config, found.identity, storage, grouping)
        for placement_id, start in held.others.items() if held is not None else ():
            node.storage.held.remember(placement_id, start)
        node.stages.load()
        _note_recovered(node, found, recovered.end)
        _begin_history(node, found)
        journal.sync()
        _forget_before(node, found)
        for partition in storage.feeds.partitions():
            partition.durable_through(partition.high_seq)
    except BaseException:
        with contextlib.suppress(TailraceError):  # the first error tells more
            journal.close()
        raise
    return node


def _recover_storage(config: Config, host: Host, found: _Found, journal: Journal, recovered: Recovered) -> Storage:
    """Returns the storage with all feeds, as manifests and journal tell. From its middle on, CLEAN is gone."""
    identity, taken, held, is_restored, _ = found
    memory = MemoryAccount(config.storage.memory_bytes_max)
    catalog = Catalog(memory)
    store = ManifestStore(host.disk, config.data, config.storage.segments_open_max)
    times = UseTimes(host.clock.monotonic(), recovered.records.begin, journal.written)
    recovery = FeedRecovery(catalog, host.disk, store, times)
    recovery.restore()
    if recovered.rolled_back:
        recovery.gather(recovered.records.of_kind(RecordKind.ROLLED_BACK), host.randomness.token)
    recovery.replay(recovered.records.parts(), journal)
    if taken is None:
        store_identity(host.disk, config.data, identity)
    elif not is_restored:
        wholeness.check_recovered(config.data, recovered, recovery, catalog, taken.mark, held)
    # From here on there are changes that CLEAN does not tell of.
    remove_clean(host.disk, config.data)
    recovery.sweep()
    for partition in catalog.partitions():
        settle_producers(partition, journal, host.clock.monotonic())
    memory.producers.make_room(host.clock.monotonic())
    store.finish_drops(catalog.known_ids())
    uptime = load_uptime(host.disk, config.data, host.clock)
    storage = Storage(config, host, identity, journal, catalog, store, memory, uptime)
    storage.journal_found = recovered.end
    for partition, segments in recovery.left:
        storage.installer.left(partition, segments)
    storage.ahead.load(catalog.partitions(), is_alone=config.is_alone)
    return storage


def _note_recovered(node: Node, found: _Found, end: tuple[int, int]) -> None:
    """Notes the damaged partitions, those with something to flush, and whether the last stop was unclean.

    ``end`` is the end of the journal that was found.
    """
    storage = node.storage
    for partition in storage.feeds.partitions():
        if partition.damage is not None:
            storage.found_damage(partition.damage)
        if partition.high_seq > partition.flushed_seq:
            storage.flusher.note(partition)
    if found.taken is not None and end != (0, 0) and _has_begun(storage.feeds):
        node.services.unclean_start = why_unclean(found.taken, end, storage.feeds.clean_partitions())
    if found.is_restored:
        node.services.unclean_start = "the directory was restored or repaired"


def _begin_history(node: Node, found: _Found) -> None:
    """Restores the partitions' logs, begins branches if the node is alone, and reconciles the feeds."""
    if node.config.is_alone:
        _begin_branches(node, is_restored=found.is_restored, has_followed=bool(found.followed))
    else:
        for partition in node.storage.feeds.partitions():
            # A manifest may have had an entry before the blocks up to its base were durable.
            partition.restore_log(entries_through(partition.log, partition.high_seq))
    _reconcile(node)


def _forget_before(node: Node, found: _Found) -> None:
    """Stores HELD. Removes the marks of a restored directory, and of one that followed another node."""
    config, disk = node.config, node.host.disk
    _store_held(node, is_restored=found.is_restored)
    if found.is_restored and config.is_alone:
        marks.unmark_restored(disk, config.data)
    for name in found.followed:
        forget_following(disk, config.data, found.identity.placement_id, name)


def _has_begun(catalog: Catalog) -> bool:
    """Returns whether any partition has a branch, or is damaged. Before that a stop, clean or not, lost nothing.

    A directory has no branch if it was only prepared, or if the node has waited for its set.
    """
    return any(partition.log or partition.damage is not None for partition in catalog.partitions())


def _begin_branches(node: Node, *, is_restored: bool, has_followed: bool) -> None:
    """Of a node that leads whatever happens: a new branch everywhere, unless it led before and has lost nothing."""
    host, journal = node.host, node.storage.journal
    why = node.services.unclean_start
    if why is not None:
        log.warning("the last stop was not clean: %s; every partition begins a new branch", why)
    elif has_followed:
        log.warning("this node followed another one, and leads by itself now; every partition begins a new branch")
    if why is not None or has_followed:
        now_us = host.clock.wall_us()
        for partition in node.feeds.partitions():
            term = marks.restored_term(partition.log.term, now_us) if is_restored else None
            begin_branch(partition, host.randomness.token(16), journal, term)
    [listed] = node.feeds.system.partitions
    if not listed.log:  # the directory is new, or from before there was such a feed
        begin_branch(listed, host.randomness.token(16), journal)


def _store_held(node: Node, *, is_restored: bool) -> None:
    """Writes HELD, the mark of the node's present data.

    On a full disk the older mark stays, unless it is of other data.
    """
    if is_restored:
        remove_held(node.host.disk, node.config.data)
    with contextlib.suppress(OSError):
        node.storage.held.store_now()


def _reconcile(node: Node) -> None:
    """Finishes creations and drops that a crash has interrupted after their rows of ``_feeds``."""
    feeds, journal, clock = node.feeds, node.storage.journal, node.host.clock
    [listed] = feeds.system.partitions
    if listed.damage is not None:
        return
    listed.durable_through(listed.high_seq)  # as everything that the journal still held
    _, created = feeds.reconcile(journal, node.config.limits.feeds_max, whole=False, keep_absent=True)
    for partition in [partition for feed in created for partition in feed.partitions] if node.config.is_alone else []:
        # It may have held something, on the branch that the row names, before its files were lost.
        begin_branch(partition, node.host.randomness.token(16), journal)
    unlisted = feeds.unlisted() if node.config.is_alone else {}
    if unlisted:
        feeds.write_rows(unlisted, journal, now_us=clock.wall_us(), now=clock.monotonic())
        node.storage.flusher.note(listed)
