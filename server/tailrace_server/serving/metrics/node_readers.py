"""Reads the numbers of a node that need no look at its partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace import _version
from tailrace_server.replication.role import Role
from tailrace_server.serving.status import failing_of, health_of

if TYPE_CHECKING:
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.serving.metrics.samples import Samples
    from tailrace_server.serving.services import Services


def read_node(node: Services, samples: Samples) -> None:
    """Adds the samples of the node, its requests, its storage and its place among other nodes."""
    _read_identity(node, samples)
    _read_requests(node, samples)
    _read_journal(node, samples)
    _read_storage(node, samples)
    _read_upkeep(node, samples)
    _read_replication(node, node.leaderships.unnamed, samples)


def _read_identity(node: Services, samples: Samples) -> None:
    samples.add("tailrace_node_info", 1, _version.__version__, node.identity.node_id.hex(), node.config.cluster)
    samples.add("tailrace_healthy", health_of(node)["healthy"])
    samples.add("tailrace_damaged_segments", len(node.storage.damages))
    samples.add("tailrace_feeds", len(node.feeds))
    samples.add("tailrace_partitions", node.feeds.count_partitions() - 1)


def _read_requests(node: Services, samples: Samples) -> None:
    for opcode, count in node.traffic.requests():
        samples.add("tailrace_requests_total", count, opcode)
    for name, count in node.traffic.errors():
        samples.add("tailrace_errors_total", count, name)
    written = node.storage.written
    samples.add("tailrace_written_blocks_total", written.blocks)
    samples.add("tailrace_written_mutations_total", written.mutations)
    samples.add("tailrace_written_bytes_total", written.bytes)
    samples.add("tailrace_published_batches_total", written.batches)
    for level, durations in node.traffic.write_durations.items():
        samples.add_durations("tailrace_write_seconds", durations, level.name.lower())
    samples.add_durations("tailrace_get_seconds", node.traffic.get_durations)
    samples.add("tailrace_connections_opened_total", node.traffic.connections_opened)
    samples.add("tailrace_streams_opened_total", node.traffic.streams_opened)


def _read_journal(node: Services, samples: Samples) -> None:
    journal = node.storage.journal.statistics()
    samples.add("tailrace_journal_files", journal.files)
    samples.add("tailrace_journal_bytes", journal.bytes)
    samples.add("tailrace_journal_records", journal.records)
    samples.add("tailrace_journal_unsynced_bytes", journal.unsynced_bytes)
    samples.add("tailrace_journal_replay_seconds", journal.replay_seconds)
    samples.add("tailrace_journal_fsyncs_total", journal.syncs)
    samples.add_durations("tailrace_journal_fsync_seconds", node.storage.journal.sync_durations)
    samples.add("tailrace_journal_failed", (node.storage.committer.failure or node.storage.journal.failed) is not None)


def _read_storage(node: Services, samples: Samples) -> None:
    storage = node.storage
    samples.add("tailrace_memory_bytes", storage.memory.held)
    samples.add("tailrace_memory_limit_bytes", storage.memory.bytes_max)
    samples.add("tailrace_retired_bytes", storage.pins.retired_bytes)
    samples.add("tailrace_read_cache_bytes", storage.read_cache.nbytes)
    samples.add("tailrace_read_cache_hits_total", storage.read_cache.hits)
    samples.add("tailrace_read_cache_misses_total", storage.read_cache.misses)
    samples.add("tailrace_checkpoints", len(storage.checkpoints))
    samples.add("tailrace_checkpoint_bytes", storage.checkpoints.replaced_bytes)
    samples.add("tailrace_free_bytes", storage.space.free_bytes)
    samples.add("tailrace_free_limit_bytes", node.config.storage.free_bytes_min)
    samples.add("tailrace_reserved_bytes", storage.space.reserved_bytes)
    stages = node.stages.statistics()
    samples.add("tailrace_stages", stages.open, "open")
    samples.add("tailrace_stages", stages.sealed, "sealed")
    samples.add("tailrace_stage_bytes", stages.bytes)


def _read_upkeep(node: Services, samples: Samples) -> None:
    flushes = node.storage.flusher.statistics()
    samples.add("tailrace_flushes_total", flushes.flushes)
    samples.add("tailrace_flushed_bytes_total", flushes.bytes)
    samples.add_durations("tailrace_flush_seconds", node.storage.flusher.durations)
    samples.add("tailrace_flush_failing", bool(flushes.failure))
    compactions = node.storage.compactor.statistics()
    samples.add("tailrace_compactions_total", compactions.compactions)
    samples.add("tailrace_compacted_bytes_total", compactions.compacted_bytes)
    samples.add("tailrace_compaction_rows_read_total", compactions.rows_read)
    samples.add("tailrace_compaction_rows_dropped_total", compactions.rows_dropped)
    samples.add_durations("tailrace_compaction_seconds", node.storage.compactor.durations)
    samples.add("tailrace_compaction_failing", bool(compactions.compaction_failure))
    checks = node.storage.checks.statistics()
    samples.add("tailrace_checked_bytes_total", checks.checked_bytes)
    samples.add("tailrace_check_passes_total", checks.check_passes)
    samples.add("tailrace_expired_rows_total", node.expirer.expired_rows)
    samples.add("tailrace_expiry_overdue_seconds", node.expirer.overdue_s())


def _read_replication(node: Services, leadership: Leadership, samples: Samples) -> None:
    member = node.members.get(leadership.group.number)
    samples.add("tailrace_leader", leadership.role is Role.LEADER)
    samples.add("tailrace_promised_term", leadership.term if member is None else member.local.file.now.term)
    samples.add("tailrace_leader_changes_total", leadership.changes)
    answering = 0
    if leadership.in_set and member is not None:
        answering = 1 + sum(state is not None for state in member.peers.states.values())
    samples.add("tailrace_members", len(leadership.members.now))
    samples.add("tailrace_members_answering", answering)
    samples.add("tailrace_failing_partitions", sum(len(failing_of(node, each)) for each in node.leaderships))
