"""Names each metric of a node: the type, the labels and a sentence. The reference and the readers use this table.

Units follow Prometheus: seconds, bytes, and ``_total`` for what only grows while a node runs.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

# The feeds, the consumers and the sinks that have series of their own. The others share those of the name `OTHER`.
FEEDS_MAX = 100
CONSUMERS_MAX = 200
SINKS_MAX = 100
OTHER = "other"
# The name of consumers that have given none.
UNNAMED = "unnamed"


class Kind(enum.StrEnum):
    """The type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Described(NamedTuple):
    """A metric: its full name, its type, the names of its labels, and a sentence for people."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    text: str


def _counter(name: str, text: str, *labels: str) -> Described:
    return Described(f"tailrace_{name}_total", Kind.COUNTER, labels, text)


def _gauge(name: str, text: str, *labels: str) -> Described:
    return Described(f"tailrace_{name}", Kind.GAUGE, labels, text)


def _histogram(name: str, text: str, *labels: str) -> Described:
    return Described(f"tailrace_{name}_seconds", Kind.HISTOGRAM, labels, text)


# By subject, as the reference shows them.
SUBJECTS: dict[str, tuple[Described, ...]] = {
    "The node": (
        _gauge("node_info", "1; the labels name the node, its cluster and its version.", "version", "node", "cluster"),
        _gauge("healthy", "1 if nothing is wrong with the node, as /healthz says; else 0."),
        _gauge("ready", "1 if the node serves clients, as /readyz says; else 0."),
        _gauge("damaged_segments", "The segments that were found damaged."),
        _gauge("feeds", "The feeds, without _feeds."),
        _gauge("partitions", "The partitions of all feeds, without that of _feeds."),
    ),
    "Requests and writes": (
        _counter("requests", "The frames of clients and other nodes, by opcode.", "opcode"),
        _counter("errors", "The errors that peers were told, by type.", "type"),
        _counter("written_blocks", "The blocks that writers and sinks have added."),
        _counter("written_mutations", "The mutations in these blocks."),
        _counter("written_bytes", "The bytes of these blocks, as they came."),
        _histogram("write", "The time from the append of a block to its answer, by the level of the write.", "level"),
        _histogram("get", "The time until the rows of a GET were found."),
        _counter("published_batches", "The batches of sinks that were published as a whole."),
    ),
    "Connections and streams": (
        _gauge("connections", "The open connections, by what is at the other end: client or node.", "peer"),
        _counter("connections_opened", "The connections that were accepted."),
        _gauge("slow_connections", "The consumers that have taken nothing for 5 s though something waits for them."),
        _gauge("backlog_bytes", "The bytes that wait for peers to read them."),
        _gauge("uncredited_bytes", "The bytes of blocks that were sent, and that no peer has handled yet."),
        _gauge("streams", "The open streams, by what is at the other end: consumer or replica.", "peer"),
        _counter("streams_opened", "The streams that have begun."),
        _gauge(
            "consumer_lag_seconds",
            "The age of the oldest mutation that a consumer has not handled; 0 if it has handled all.",
            "consumer",
            "feed",
        ),
        _gauge("consumer_lag_mutations", "The mutations that a consumer has not handled, at most.", "consumer", "feed"),
        _gauge("consumer_streams", "The open streams of a consumer.", "consumer", "feed"),
        _gauge(
            "stored_lag_seconds",
            "The age of the oldest mutation behind the positions that are stored of a consumer with a name or a group.",
            "kind",
            "name",
            "feed",
        ),
        _gauge("stored_lag_mutations", "The mutations behind these positions, at most.", "kind", "name", "feed"),
        _gauge(
            "stored_generation",
            "The highest generation of its partitions: it grows when they get another owner.",
            "kind",
            "name",
            "feed",
        ),
        _gauge("stored_members", "The programs that read under the name, or in the group.", "kind", "name", "feed"),
        _gauge(
            "stored_unowned_partitions",
            "Its partitions that no program may handle at present: none reads, or they change their owner.",
            "kind",
            "name",
            "feed",
        ),
        _gauge("waiting_barriers", "The barriers that wait for their streams."),
        _counter("sent_blocks", "The blocks that were sent to consumers and replicas."),
        _counter("sent_bytes", "The bytes of these blocks."),
    ),
    "Journal": (
        _gauge("journal_files", "The files of the journal."),
        _gauge("journal_bytes", "The bytes of these files."),
        _gauge("journal_records", "The records in these files."),
        _gauge("journal_unsynced_bytes", "The bytes that no fsync has made durable yet."),
        _gauge("journal_replay_seconds", "The time that a start would take to read the journal, estimated."),
        _counter("journal_fsyncs", "The fsyncs of the journal."),
        _histogram("journal_fsync", "The time of an fsync of the journal."),
        _gauge("journal_failed", "1 if the journal has failed, so that nothing is acknowledged; else 0."),
    ),
    "Memory and disk": (
        _gauge("memory_bytes", "The bytes of write queues and producers."),
        _gauge("memory_limit_bytes", "The bytes at which writers wait."),
        _gauge("write_queue_blocks", "The blocks that no segment holds yet."),
        _gauge("segments", "The segments of all partitions."),
        _gauge("segment_bytes", "The bytes of these segments."),
        _gauge("retired_bytes", "The bytes of replaced segments that readers still need."),
        _gauge("read_cache_bytes", "The bytes of segments and compressed blocks that look-ups by key keep in memory."),
        _counter("read_cache_hits", "The parts of segments and the blocks that look-ups found there."),
        _counter("read_cache_misses", "The parts of segments and the blocks that look-ups had to open."),
        _gauge("checkpoints", "The checkpoints whose segments are kept for clients."),
        _gauge("checkpoint_bytes", "The bytes of replaced segments that are kept for them."),
        _gauge("free_bytes", "The free bytes of the disk, as measured last."),
        _gauge("free_limit_bytes", "The free bytes below which writes are refused."),
        _gauge("reserved_bytes", "The bytes of the reserve for a full disk."),
        _gauge("stages", "The stages of sinks that wait to be published, by state: open or sealed.", "state"),
        _gauge("stage_bytes", "The bytes of these stages."),
    ),
    "Flush, compaction, checks": (
        _counter("flushes", "The flushes of write queues to segments."),
        _counter("flushed_bytes", "The bytes of their segments."),
        _histogram("flush", "The time of a flush, until a manifest names its segment."),
        _gauge("flush_failing", "1 if the last try of a flush failed; else 0."),
        _counter("compactions", "The compactions of segments."),
        _counter("compacted_bytes", "The bytes of their segments."),
        _counter("compaction_rows_read", "The rows that they have read."),
        _counter("compaction_rows_dropped", "The rows that they have left out."),
        _histogram("compaction", "The time of a compaction, until a manifest names its segment."),
        _gauge("compaction_failing", "1 if a compaction waits after a failure; else 0."),
        _counter("checked_bytes", "The bytes of segments that were compared with their checksums."),
        _counter("check_passes", "The passes of these checks over all segments."),
        _counter("expired_rows", "The keys that the node has deleted as a leader since their ttl was over."),
        _gauge("expiry_overdue_seconds", "The seconds for which a key has waited that is due to expire; else 0."),
    ),
    "Feeds": (
        _gauge("feed_partitions", "The partitions of a feed.", "feed"),
        _gauge("feed_mutations", "The newest seqs of a feed, summed over its partitions.", "feed"),
        _gauge("feed_durable_mutations", "The seqs of a feed on this disk, summed over its partitions.", "feed"),
        _gauge("feed_memory_bytes", "The bytes of a feed's write queues.", "feed"),
        _gauge("feed_segments", "The segments of a feed.", "feed"),
        _gauge("feed_segment_bytes", "The bytes of these segments.", "feed"),
        _gauge("sink_last_batch", "The number of the last batch that a sink has published in a feed.", "feed", "sink"),
        _gauge(
            "sink_last_batch_timestamp_seconds",
            "The time of that batch by the clock of its leader, in seconds since 1970 UTC.",
            "feed",
            "sink",
        ),
    ),
    "Replication": (
        _gauge("leader", "1 if the node leads; else 0."),
        _gauge("term", "The term in which the node leads or follows."),
        _gauge("promised_term", "The highest term that the node has promised."),
        _counter("leader_changes", "The times that the node came to lead, ceased to lead, or led in another term."),
        _gauge("members", "The members of the set, this node included; 0 outside of a set."),
        _gauge("members_answering", "The members that have answered last, this node included; 0 outside of a set."),
        _gauge("quorum_lag_mutations", "The mutations that no majority has on disk yet; 0 outside of a set."),
        _gauge("leader_lag_mutations", "Of a follower: the mutations on the leader's disk that are not on this one."),
        _gauge("failing_partitions", "The partitions that cannot follow their leader at present."),
        _gauge("unreadable_partitions", "The partitions that the node cannot read."),
        _gauge("replica_connected", "1 if a replica has a stream open; else 0.", "replica"),
        _gauge(
            "replica_lag_seconds",
            "The age of the oldest mutation that a replica has not acknowledged; 0 if it has all.",
            "replica",
        ),
        _gauge("replica_lag_mutations", "The mutations that a replica has not acknowledged.", "replica"),
        _gauge("replica_lag_bytes", "The bytes of the blocks and segments with these mutations.", "replica"),
    ),
    "Partitions, on request": (
        _gauge("partition_high_seq", "The newest seq of a partition.", "feed", "partition"),
        _gauge("partition_durable_seq", "The newest seq on this disk.", "feed", "partition"),
        _gauge("partition_quorum_seq", "The newest seq on the disks of a majority.", "feed", "partition"),
        _gauge("partition_flushed_seq", "The newest seq in segments.", "feed", "partition"),
        _gauge("partition_memory_bytes", "The bytes of the partition's write queue.", "feed", "partition"),
        _gauge("partition_segments", "The segments of the partition.", "feed", "partition"),
        _gauge("partition_segment_bytes", "The bytes of these segments.", "feed", "partition"),
    ),
    # By the process collector of prometheus-client.
    "Process": (
        _counter("process_cpu_seconds", "The processor's time of the process."),
        _gauge("process_resident_memory_bytes", "The bytes of memory that the process has."),
        _gauge("process_virtual_memory_bytes", "The bytes of addresses that the process has."),
        _gauge("process_start_time_seconds", "The time at which the process began, in seconds since 1970 UTC."),
        _gauge("process_open_fds", "The open file descriptors."),
        _gauge("process_max_fds", "The most file descriptors that may be open."),
    ),
}
CATALOGUE: dict[str, Described] = {metric.name: metric for metrics in SUBJECTS.values() for metric in metrics}


def table(metrics: tuple[Described, ...]) -> str:
    """Returns the table of the reference for ``metrics``, in Markdown."""
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.text} |")
    return "\n".join(lines) + "\n"
