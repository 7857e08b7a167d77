"""The files AHEAD of a node, by partition: rows that have come before the rows below them (ahead_file.py).

A start reads them, so that a follower fetches only the holes. They go when their rows are applied, or when the holes
are not filled: another history, a promotion, a stream from the prefix. Then the log says which seqs go.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import trio

from tailrace.model.failover import SEQ_MAX, FailoverLog, common_seq
from tailrace_server.chain import AppliedRange, AppliedRanges
from tailrace_server.manifest.store import AHEAD_NAME
from tailrace_server.partition.replica_apply import entries_through
from tailrace_server.upkeep.ahead_file import AheadDamaged, AheadFile

if TYPE_CHECKING:
    from tailrace_server.manifest import ManifestStore
    from tailrace_server.partition.partition import Partition
    from tailrace_server.runtime.host import Host
    from tailrace_server.upkeep.received_files import ReceivedFiles

log = logging.getLogger("tailrace.server")

_TOKEN_BYTES = 16


class AheadFiles:
    """The files of one data directory. One task at a time works with the file of a partition."""

    def __init__(self, host: Host, store: ManifestStore, received: ReceivedFiles) -> None:
        self._host = host
        self._store = store
        self._received = received
        self._files: dict[Partition, AheadFile] = {}

    def load(self, partitions: Iterable[Partition], *, is_alone: bool = False) -> None:
        """Reads the files that an earlier start has left; removes those that cannot be used. For the start. OSError.

        ``is_alone``: the node follows no other that could fill the holes, so all of them are removed.
        """
        disk = self._host.disk
        for partition in partitions:
            path = self._path(partition)
            if not disk.exists(path):
                continue
            try:
                file = AheadFile.load(disk, path, partition.feed_id, partition.id)
            except AheadDamaged as error:
                log.warning("rows that came ahead are dropped, and come again: %s", error)
                disk.remove(path)
                continue
            self._received.recall(partition)  # segments that stay unused are removed in time
            if is_alone:
                _warn(partition, file.range, "this node leads by itself now, and the rows between are missing")
                file.remove()
            else:
                self._files[partition] = file

    def find(self, partition: Partition) -> AheadFile | None:
        """Returns the file of ``partition``; None if there is none."""
        return self._files.get(partition)

    def ranges(self, partition: Partition) -> AppliedRanges:
        """Returns the prefix of ``partition``, and the ranges beyond it: rows of its file, and received segments."""
        file = self._files.get(partition)
        rows = [] if file is None else [file.range]
        return AppliedRanges.of(partition.high_seq, [*rows, *self._received.runs(partition)])

    async def begin(self, partition: Partition, seq: int, log: FailoverLog) -> AheadFile:
        """Returns the file of ``partition`` for rows behind ``seq``, where segments of the history ``log`` end.

        The file that is there goes on if its rows are of that history, and reach ``seq``. NoSpace, OSError.
        """
        file = await self.settle(partition, log)
        if file is not None and file.after_seq <= seq <= file.last_seq:
            return file
        if file is not None:
            await self.discard(partition, f"the segments of the leader end at seq {seq}")
        disk, path = self._host.disk, self._path(partition)
        place, random = (partition.feed_id, partition.id), self._host.randomness.token(_TOKEN_BYTES)
        made = await self._host.workers.in_thread(lambda: AheadFile.create(disk, path, *place, seq, log, random))
        self._files[partition] = made
        return made

    async def settle(self, partition: Partition, log: FailoverLog, high_seq: int = SEQ_MAX) -> AheadFile | None:
        """Drops the rows of ``partition`` that are not in the history ``log`` up to ``high_seq``. Returns its file.

        None if there is none, or none is left. OSError.
        """
        file = self._files.get(partition)
        if file is None:
            return None
        common = common_seq(entries_through(file.log, file.last_seq), file.last_seq, log, high_seq) or 0
        if common < file.last_seq:
            await self.keep_through(partition, file, common)
        return self._files.get(partition)

    async def keep_through(self, partition: Partition, file: AheadFile, seq: int) -> None:
        """Drops the rows above ``seq``, which the leader does not have. OSError."""
        if seq < file.after_seq:
            await self.discard(partition, f"the leader has another history above seq {seq}")
            return
        before = file.last_seq
        try:
            await self._host.workers.in_thread(lambda: file.keep_through(seq))
        except AheadDamaged as error:
            await self.discard(partition, str(error))
            return
        _warn(partition, AppliedRange(file.last_seq, before), f"the leader has another history above seq {seq}")

    async def discard(self, partition: Partition, why: str) -> None:
        """Removes the file of ``partition``; the log says ``why``, and which rows above the prefix go with it.

        A cancellation waits until the file is gone.

        OSError: the next start finds the file.
        """
        file = self._files.pop(partition, None)
        if file is not None:
            gone = AppliedRange(max(file.after_seq, partition.high_seq), file.last_seq)
            if gone.after_seq < gone.last_seq:
                _warn(partition, gone, why)
            with trio.CancelScope(shield=True):  # nothing would remove a file that is forgotten
                await self._host.workers.in_thread(file.remove)

    def forget(self, partition: Partition) -> None:
        """Forgets the file of a partition whose feed was dropped: it goes with the directory."""
        self._files.pop(partition, None)

    def _path(self, partition: Partition) -> str:
        return os.path.join(self._store.partition_directory(partition.feed_id, partition.id), AHEAD_NAME)


def _warn(partition: Partition, gone: AppliedRange, why: str) -> None:
    log.warning(
        "partition %s of feed %s drops seqs %s, which came ahead of the rows below them: %s",
        *(partition.id, partition.feed_id.hex(), gone, why),
    )
