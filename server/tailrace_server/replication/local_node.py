"""The parts of this node that replication works with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace_server.config import Config
from tailrace_server.directory.identity import Identity, join_cluster
from tailrace_server.host.clock import Clock
from tailrace_server.runtime.host import Host
from tailrace_server.state.recent_traces import RecentTraces

if TYPE_CHECKING:
    from tailrace_server.feeds.catalog import Catalog
    from tailrace_server.replication.feed_changes import FeedChanges
    from tailrace_server.replication.leaderships import Leaderships
    from tailrace_server.replication.waiting import WaitingAnswers
    from tailrace_server.stream.open_streams import OpenStreams
    from tailrace_server.upkeep.storage import Storage


@dataclass(eq=False)
class LocalNode:
    """This node, as opposed to its peers. The composition root makes it, and sets ``listening`` when it listens.

    Only ``join`` changes the identity.
    """

    config: Config
    host: Host
    clock: Clock  # of the timestamps of writes
    identity: Identity
    feeds: Catalog
    storage: Storage
    connections: OpenStreams
    leaderships: Leaderships
    waiting: WaitingAnswers
    feed_changes: FeedChanges
    traces: RecentTraces
    # The address of the node's listener; None before it listens.
    listening: tuple[str, int] | None

    def join(self, cluster_id: bytes) -> None:
        """Makes a new directory one of this cluster, durably. OSError.

        Clients know the former id, and connect anew.
        """
        if self.identity.cluster_id != cluster_id:
            self.identity = join_cluster(self.host.disk, self.config.data, self.identity, cluster_id)
            self.connections.end_sessions(f"this node has become one of cluster {cluster_id.hex()}: connect anew")
