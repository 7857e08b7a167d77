"""The checks can fail: each bug that is planted here is found, by the step that it is in or by a few lives."""

from __future__ import annotations

import contextlib
import os
from unittest import mock

import numpy as np
import pytest

from tailrace.errors import TailraceError
from tailrace_server.compaction import worker
from tailrace_server.feeds import pending_blocks
from tailrace_server.feeds import recovery as feed_recovery
from tailrace_server.journal import BlockCase, next_file
from tailrace_server.journal import recovery as journal_recovery
from tailrace_server.journal import writer as journal_writer
from tailrace_server.journal.held import HeldMark, store_held
from tailrace_server.manifest import store
from tailrace_server.node import start
from tailrace_server.segment.writer import SegmentWriter
from tailrace_server.state.ahead import Ahead
from tailrace_server.upkeep import flusher
from tailrace_server.upkeep.committer import Committer
from tailrace_server.upkeep.held_writer import HeldWriter
from tailrace_server.upkeep.installer import Installer

from .life import LOUD, QUIET, live
from .scenarios import crash_scenario

pytestmark = pytest.mark.slow

SEEDS = range(20)


def rename_before_fsync(disk, path, data):
    file = disk.create(path + ".new")
    file.write_at(0, (data,), len(data))
    disk.rename(path + ".new", path)
    file.sync()
    file.close()
    disk.sync_directory(os.path.dirname(path))


def rename_without_fsync_of_the_directory(disk, path, data):
    file = disk.create(path + ".new")
    file.write_at(0, (data,), len(data))
    file.sync()
    file.close()
    disk.rename(path + ".new", path)


def segment_without_fsync(self):
    self._file.sync = lambda: None
    return original_finish(self)


original_finish = SegmentWriter.finish
original_flush = flusher.Flusher.flush
original_identity_of = worker.identity_of
original_decide = feed_recovery.decide_block
original_fold = Installer.install_compacted
original_install = Installer._install


async def trim_before_the_manifest(self, partition):
    controls = partition.journal_references.controls
    partition.journal_references.manifest_written(controls, partition.durable_seq)
    await self._trimmer._trim_journal()
    return await original_flush(self, partition)


def answer_before_fsync(self, callback):
    callback(None)


def purge_in_silence(task, identities, decision=worker._ALL_STAY):
    return original_identity_of(task, identities, decision)._replace(purge_seq=0)


async def install_before_the_manifest(self, partition, chain, **changes):
    partition.install(chain, partition.journal_references.controls)
    await original_install(self, partition, chain, **changes)


async def remove_before_the_manifest(self, partition, folded, result, rollbacks):
    for segment in folded:
        self._store._disk.remove(segment.path)
    await original_fold(self, partition, folded, result, rollbacks)


def flush_what_is_not_durable(partition, seq):
    return list(partition.tree.blocks_after(partition.flushed_seq))


def decide_without_flushed_seq(**arguments):
    return original_decide(**{**arguments, "flushed_seq": 0})


original_first_of = pending_blocks._Places.first_of


def place_without_flushed_seq(self, feed):
    slot = original_first_of(self, feed)
    self.flushed = np.zeros_like(self.flushed)
    return slot


def apply_what_was_flushed(**arguments):
    case = original_decide(**arguments)
    return BlockCase.HELD if case is BlockCase.GAP else case


def believe_every_mark(taken, journal_end, partitions):
    return None


def old_at_once(self, place, log, age_us, up_us):
    return self.seqs(place)[-1] if self.seqs(place) else 0


def publish_without_fsync(disk, path, file):
    disk.rename(path + ".new", path)
    disk.sync_directory(os.path.dirname(path))


def tell_before_the_fsync(self, feeds, others):
    store_held(self._host.disk, self._data, HeldMark(self._journal.end, feeds))


BUGS = {
    "a manifest is renamed before its fsync": ("flush", store, "write_atomically", rename_before_fsync),
    "a manifest's name is not fsynced": (
        "trim_journal",
        store,
        "write_atomically",
        rename_without_fsync_of_the_directory,
    ),
    "a segment is not fsynced": ("flush", SegmentWriter, "finish", segment_without_fsync),
    "the journal is trimmed before the manifest": (
        "trim_journal",
        flusher.Flusher,
        "flush",
        trim_before_the_manifest,
    ),
    "a write is answered before its fsync": ("writes", Committer, "when_durable", answer_before_fsync),
    "deletions are purged in silence": ("fold_and_purge", worker, "identity_of", purge_in_silence),
    "segments are removed before the manifest": (
        "fold_all",
        Installer,
        "install_compacted",
        remove_before_the_manifest,
    ),
    "what is not durable is flushed": ("flush", flusher, "blocks_through", flush_what_is_not_durable),
    "a start ignores the flushed seq": ("recovery", feed_recovery, "decide_block", decide_without_flushed_seq),
    "a start believes that the stop was clean": ("recovery", start, "why_unclean", believe_every_mark),
    "a journal file is named before its fsync": ("recovery", journal_recovery, "publish_file", publish_without_fsync),
    "a journal without a free descriptor fails for good": (
        "descriptors",
        journal_writer,
        "is_out_of_descriptors",
        lambda error: False,
    ),
    "what is stamped ahead of the clock is old at once": ("clocks", Ahead, "old_seq", old_at_once),
    "what is not durable is noted as held": ("keep", HeldWriter, "_store", tell_before_the_fsync),
    "the chain changes before the manifest": ("lives", Installer, "_install", install_before_the_manifest),
}


# Planted beside the bug, since each of the two makes the other's absence harmless: a start replays by columns, and what
# does not follow one at a time; the journal gives up spare descriptors before it refuses a record.
BESIDE = {
    "a start ignores the flushed seq": (pending_blocks._Places, "first_of", place_without_flushed_seq),
    "a journal without a free descriptor fails for good": (next_file, "is_out_of_descriptors", lambda error: False),
}


async def find(where):
    """Whatever is wrong; None where nothing was found."""
    for seed in SEEDS:
        try:
            if where == "lives":
                await live(seed, 150, {**QUIET, **LOUD})
            elif where == "clocks":
                await live(seed, 150, {**QUIET, "jump": 3, "crash": 1})
            elif where == "descriptors":
                await live(seed, 150, {**QUIET, "starve": 4})
            else:
                await crash_scenario(where, seed)
        except (AssertionError, TailraceError, OSError) as error:
            return error
    return None


@pytest.mark.planted
@pytest.mark.parametrize("bug", BUGS)
async def test_a_planted_bug_is_found(bug):
    where, owner, name, planted = BUGS[bug]
    with contextlib.ExitStack() as planted_bugs:
        for patch in ((owner, name, planted), BESIDE.get(bug)):
            if patch is not None:
                planted_bugs.enter_context(mock.patch.object(*patch))
        error = await find(where)
    assert error is not None, f"nobody notices that {bug}"
    assert isinstance(error, AssertionError | TailraceError), "the bug does not even run"
