"""Makes bounds of the product small for the time of a run, so that a few rows reach them."""

from __future__ import annotations

import contextlib
import dataclasses
from unittest import mock

from tailrace.copies import compare, fetch
from tailrace.model import failover
from tailrace.segment import key_table
from tailrace_server.feeds import recovery as feed_recovery
from tailrace_server.node import node
from tailrace_server.publishing import cutting, joining, publisher, stages
from tailrace_server.replication import catch_up_rule, catching_up
from tailrace_server.serving import lookup, segment_offers
from tailrace_server.stream import partition_stream
from tailrace_server.upkeep import flushed_segment, received_files

from . import machine

# Few blocks of a batch are joined to one, so that a batch has several.
JOINED_BYTES = 100
# The largest segment and snapshot that hold one batch.
SEGMENT_BYTES = 1_500
SNAPSHOT_BYTES = 600
# The largest part of a batch, and how much of a stage is sorted at a time.
PART_BYTES = 1_000
READ_BYTES = 400
# An unsealed stage has lost its writer after IDLE_SECONDS. Stages are looked through every EXPIRE_SECONDS.
IDLE_SECONDS = 3.0
EXPIRE_SECONDS = 1.0
# A checkpoint that was not used ends after KEPT_SECONDS, or if replaced segments take more than KEPT_BYTES.
KEPT_SECONDS = 0.5
KEPT_BYTES = 4_000
# The least seconds between two flushes for checkpoints.
FLUSH_SECONDS = 0.2
# In stories of fetches they are more, so that a leader can step down while a fetch waits for its flush.
FLUSH_SECONDS_OF_STORIES = 1.0
# A fetch asks for a window of these bytes at first, in parts of at least the others.
WINDOW_BYTES = 1_600
PART_BYTES_MIN = 400
# A leader pushes segments in parts of these bytes, as soon as rows are so old.
PUSHED_PART_BYTES = 1_500
FOLLOWERS_PART_BYTES_MIN = 1_200
PUSHED_AGE_SECONDS = 0.3
# A follower copies segments also if it lacks only this fraction of them.
SHARE = 1_000_000
# The lease of a member of a group, and how long it may finish a partition that another one is to have.
LEASE_SECONDS = 0.4
RELEASE_SECONDS = 2.0
# Files that were received in part are removed after this time.
UNUSED_SECONDS = 1.0


@contextlib.contextmanager
def small_bounds(plan):
    """Makes the bounds small that the plan's run has to reach."""
    with contextlib.ExitStack() as stack:
        if plan.has_sink:
            stack.enter_context(_small_batches(in_parts=plan.in_parts))
        if plan.has_copies or plan.way:
            flush_s = FLUSH_SECONDS_OF_STORIES if plan.has_copies and plan.story else FLUSH_SECONDS
            stack.enter_context(_small_copies(FOLLOWERS_PART_BYTES_MIN if plan.way else PART_BYTES_MIN, flush_s))
        if plan.way:
            stack.enter_context(_small_transfers(plan))
        if plan.has_groups:
            limits = dataclasses.replace(machine.LIMITS, group_lease_s=LEASE_SECONDS, group_release_s=RELEASE_SECONDS)
            stack.enter_context(mock.patch.object(machine, "LIMITS", limits))
        stack.enter_context(mock.patch.object(failover, "ENTRIES_MAX", plan.entries_max))
        # A start goes by columns through a journal of any length: a run has too few records for it otherwise.
        stack.enter_context(mock.patch.object(feed_recovery, "TOGETHER_MIN", 1))
        # A look-up of a few keys goes by parts of the key table, and by blocks.
        stack.enter_context(mock.patch.object(key_table, "SLAB_HASHES_MIN", 2))
        stack.enter_context(mock.patch.object(lookup, "AHEAD_KEYS_MIN", 2))
        yield


@contextlib.contextmanager
def _small_batches(*, in_parts):
    storage = dataclasses.replace(machine.STORAGE, publish_bytes_max=PART_BYTES) if in_parts else machine.STORAGE
    with (
        mock.patch.object(machine, "STORAGE", storage),
        mock.patch.object(publisher, "STEP_S", 0.0 if in_parts else publisher.STEP_S),
        mock.patch.object(cutting, "READ_BYTES", READ_BYTES),
        mock.patch.object(joining, "JOINED_BYTES_MAX", JOINED_BYTES),
        mock.patch.object(flushed_segment, "SEGMENT_BYTES_MAX", SEGMENT_BYTES),
        mock.patch.object(partition_stream, "SNAPSHOT_BYTES_MAX", SNAPSHOT_BYTES),
        mock.patch.object(stages, "IDLE_S_MAX", IDLE_SECONDS),
        mock.patch.object(node, "_EXPIRE_SECONDS", EXPIRE_SECONDS),
    ):
        yield


@contextlib.contextmanager
def _small_copies(part_bytes_min, flush_s):
    """Makes a fetch ask for many small parts, and checkpoints end early."""
    limits = dataclasses.replace(
        machine.LIMITS,
        checkpoint_kept_s=KEPT_SECONDS,
        checkpoint_kept_bytes_max=KEPT_BYTES,
        checkpoint_flush_s=flush_s,
    )
    with (
        mock.patch.object(machine, "LIMITS", limits),
        mock.patch.object(fetch, "WINDOW_BYTES_FIRST", WINDOW_BYTES),
        mock.patch.object(compare, "WINDOW_BYTES_MIN", part_bytes_min),
        mock.patch.object(compare, "WINDOW_BYTES_MAX", 8 * part_bytes_min),
        mock.patch.object(compare, "FAST_SECONDS", 0.01),
        mock.patch.object(compare, "SLOW_SECONDS", 0.1),
    ):
        yield


@contextlib.contextmanager
def _small_transfers(plan):
    """Makes followers get segments in many small parts, soon after their rows were written."""
    storage = dataclasses.replace(machine.STORAGE, pushed_age_s=PUSHED_AGE_SECONDS)
    limits = dataclasses.replace(machine.LIMITS, incoming_segments_max=plan.incoming_max)
    with (
        mock.patch.object(machine, "STORAGE", storage),
        mock.patch.object(machine, "LIMITS", limits),
        mock.patch.object(segment_offers, "PART_BYTES_MAX", PUSHED_PART_BYTES),
        mock.patch.object(catching_up, "WINDOW_BYTES_FIRST", WINDOW_BYTES),
        mock.patch.object(catch_up_rule, "ADVANTAGE", SHARE if plan.way == "pull" else catch_up_rule.ADVANTAGE),
        mock.patch.object(received_files, "UNUSED_SECONDS", UNUSED_SECONDS),
        mock.patch.object(node, "_EXPIRE_SECONDS", EXPIRE_SECONDS),
    ):
        yield
