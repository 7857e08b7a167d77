"""A node: one process, one data directory, the feeds in it, and its connections.

``Node`` is the composition root: it makes the parts and connects them. Clock, randomness, disk and network are handed
over, so that the whole node also runs in a simulator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import trio

from tailrace.errors import NotDurable, UnknownFeed
from tailrace.model import EndReason, Level
from tailrace.tls.engine import PeerIdentity
from tailrace.trio.transport import Transport
from tailrace.wire.opcodes import Opcode
from tailrace_server.config import Config, Limits, Replication, StorageConfig
from tailrace_server.directory.identity import Identity
from tailrace_server.feeds.feed import Feed
from tailrace_server.host.network import Listener
from tailrace_server.host.turn import Turn
from tailrace_server.node.admin_token import keep_admin_token, make_admin_token
from tailrace_server.publishing.publisher import Publisher
from tailrace_server.publishing.stage_spreader import StageSpreader
from tailrace_server.publishing.stages import Stages
from tailrace_server.replication.consumer_changes import ConsumerChanges
from tailrace_server.replication.expirer import Expirer
from tailrace_server.replication.feed_changes import FeedChanges
from tailrace_server.replication.groups import Group, Grouping, GroupSettings
from tailrace_server.replication.leadership import Leadership
from tailrace_server.replication.leaderships import Leaderships
from tailrace_server.replication.leaving import leave
from tailrace_server.replication.member import Member
from tailrace_server.replication.member_list import MemberList
from tailrace_server.replication.promotion import lead_again, stand
from tailrace_server.replication.succession import Succession
from tailrace_server.replication.token_changes import TokenChanges
from tailrace_server.replication.waiting import WaitingAnswers
from tailrace_server.runtime.host import Host
from tailrace_server.serving.access import Access
from tailrace_server.serving.answer_memory import AnswerMemory
from tailrace_server.serving.audit import AuditLog
from tailrace_server.serving.authority import Authority
from tailrace_server.serving.board.board import Board
from tailrace_server.serving.connections import Connections
from tailrace_server.serving.consumer_groups import Groups
from tailrace_server.serving.consumers import Consumers
from tailrace_server.serving.handlers import HANDLERS
from tailrace_server.serving.lone_gets import take_gets
from tailrace_server.serving.metrics.scrape import Scrapes
from tailrace_server.serving.narrowed_status import HIDDEN
from tailrace_server.serving.readiness import why_not_ready
from tailrace_server.serving.row_writes import take_rows
from tailrace_server.serving.services import Services
from tailrace_server.serving.status import health_of, status_body, status_of
from tailrace_server.serving.stopped_consumers import StoppedConsumers
from tailrace_server.state.recent_traces import RecentTraces
from tailrace_server.state.traffic import Traffic
from tailrace_server.stream.filter import FilterCache
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.replication_stream import ReplicationStream
from tailrace_server.upkeep.storage import Storage

# How often idle connections and silent peers are looked at, as a part of the interval of noops.
_TICKS_PER_NOOP = 4
# How often the node looks for stages that have lost their writers, or their batches.
_EXPIRE_SECONDS = 60.0


class Node:
    """A node over an open data directory. ``serve`` runs it; ``stop`` closes the directory."""

    def __init__(self, config: Config, identity: Identity, storage: Storage, grouping: Grouping) -> None:
        """``grouping``: the groups of the node, and the group of each partition."""
        self.config = config
        self._grouping = grouping
        self._has_left = False  # its leaderships were offered to others: it stops
        self.storage = storage
        self.host = host = storage.host
        self.feeds = catalog = storage.feeds
        self.connections = Connections(storage.committer, config.limits, host.greetings)
        self.waiting = WaitingAnswers()
        self.leaderships = Leaderships(map(self._leadership, grouping.groups), catalog, grouping.group_of)
        self.stages = _stages(config, host)
        self.feed_changes = FeedChanges(config, storage, self.leaderships)
        self.feed_changes.on_gone = self._feed_gone
        self.feed_changes.on_mode_changed = self._mode_changed
        self.publisher = Publisher(
            storage,
            self.leaderships,
            self.waiting,
            self.stages,
            self.connections,
            part_bytes_max=config.storage.publish_bytes_max,
        )
        self.expirer = Expirer(storage, self.leaderships)
        self.turn = Turn(host.clock)
        self.services = Services(
            config=config,
            host=host,
            clock=host.clock,
            identity=identity,
            feeds=catalog,
            storage=storage,
            connections=self.connections,
            leaderships=self.leaderships,
            waiting=self.waiting,
            feed_changes=self.feed_changes,
            traces=RecentTraces(),
            listening=None,
            turn=self.turn,
            stages=self.stages,
            publisher=self.publisher,
            traffic=Traffic(),
            stopped=StoppedConsumers(),
            filtered=FilterCache(),
            answer_memory=AnswerMemory(config.limits.answer_bytes_max),
            authority=Authority(config, catalog, host.clock, host.tls),
            audit=AuditLog(host.clock.monotonic),
            token_changes=TokenChanges(storage),
            consumers=self._consumers(),
            expirer=self.expirer,
            handlers=HANDLERS,
            short_ways={Opcode.WRITE: take_rows, Opcode.GET: take_gets},
            members={},
            started_at=self.turn.now,
            unclean_start=None,
        )
        self._scrapes = Scrapes(self.services)
        self.board = Board(self.services)
        self.publisher.spread_by(StageSpreader(self.services, self.stages))
        # Serves one connection to its end.
        self.handle = self.handler_of(self.leaderships.unnamed.group.number)
        storage.on_failed = self._journal_failed
        storage.on_progress = storage.committer.on_progress = self.connections.flush_clients
        storage.committer.on_sync = self.connections.flush_replicas
        storage.on_turn_ended = self.connections.turn_ended
        storage.space.on_low = self._space_low

    @property
    def identity(self) -> Identity:
        """The ids of this node and its cluster."""
        return self.services.identity

    @property
    def members(self) -> Mapping[int, Member]:
        """The parts that decide who leads, by the number of the group; empty of a node that is alone."""
        return self.services.members

    @property
    def listening(self) -> tuple[str, int] | None:
        """The address that the node listens on; None before it does."""
        return self.services.listening

    def _leadership(self, settings: GroupSettings) -> Leadership:
        """Makes the leadership of one group."""
        return Leadership(
            Group(settings.number, self.feeds, self._grouping.group_of),
            self.connections,
            self.waiting,
            members=MemberList(settings.members, settings.own),
            is_alone=self.config.is_alone,
        )

    def _consumers(self) -> Consumers:
        """Makes the part that knows who consumes under a name or in a group."""
        changes, clock = ConsumerChanges(self.storage, self.config.limits), self.host.clock
        groups = Groups(
            changes,
            self.leaderships.system,
            self.waiting,
            clock,
            self.config.limits,
            self.feed_changes.seqs,
            lambda: self.services.identity.cluster_id,
        )
        return Consumers(changes, self.feeds, self.leaderships, clock, groups)

    # Running

    def begin(self, listener: Listener) -> None:
        """Notes the listener's address, and becomes a member if the node is not alone.

        A node that is alone, and requires tokens, has an admin token then. Raises BadDirectory, OSError, NoSpace.
        """
        self.services.listening = listener.address
        if self.config.is_alone and self.config.auth:
            make_admin_token(self.services)
        if not self.config.is_alone:
            for settings in self._grouping.groups:
                leadership, successor = self.leaderships.of_group(settings.number), partial(Succession, stand=stand)
                member = Member(self.services, leadership, lead_again, settings, successor)
                self.services.members[settings.number] = member
                member.begin()

    async def serve(self, listener: Listener) -> None:
        """Serves connections and commits writes until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.storage.run)
            nursery.start_soon(self.connections.run)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._expire_stages)
            nursery.start_soon(self.services.consumers.groups.run, self.connections.turn_ended)
            nursery.start_soon(self.services.authority.run, self.connections)
            nursery.start_soon(keep_admin_token, self.services)
            nursery.start_soon(listener.serve, self.handle)
            if self.host.tls is not None:
                nursery.start_soon(self.host.tls.keep_renewed, self.host.workers.in_thread)
            for member in self.members.values():
                nursery.start_soon(member.run)
            self.expirer.begin(nursery)

    def handler_of(self, group: int) -> Callable[[Transport], Awaitable[None]]:
        """Returns the function that serves a connection to its end; messages that name no group are about ``group``."""
        return partial(self.connections.handle, self.services, unnamed=self.leaderships.of_group(group))

    def adopt(self, limits: Limits, storage: StorageConfig, replication: Replication) -> None:
        """Takes over those settings that can change while the node runs."""
        config = self.config
        config.limits.adopt(limits)
        config.storage.adopt(storage)
        config.replication.adopt(replication)
        self.storage.limits_changed()
        self.stages.set_bounds(storage.stages_max, storage.stage_bytes_max, storage.stage_kept_bytes_max)

    async def _tick(self) -> None:
        spent_s = 0.0
        while True:
            seconds = self.config.limits.noop_interval_s / _TICKS_PER_NOOP
            await trio.sleep(max(0.0, seconds - spent_s))
            begin = trio.current_time()
            await self.connections.tick(self.turn, seconds)
            spent_s = trio.current_time() - begin
            self.services.audit.tick(self.turn.begin())
            self.storage.checkpoints.expire()
            self.expirer.tick()

    async def _expire_stages(self) -> None:
        while True:
            await trio.sleep(_EXPIRE_SECONDS)
            age_us = int(self.config.storage.stage_age_s * 1_000_000)
            await self.publisher.expire()
            paths = self.stages.expired(self.storage.compactor.uptime.cutoff(age_us))
            if paths:
                await self.host.workers.in_thread(partial(self.stages.directory.remove, paths))
            with contextlib.suppress(OSError):  # the next start removes them
                await self.storage.received.expire()

    async def drain(self) -> None:
        """Gives leaderships away, and ends every stream with DRAINING, if there is time at the end of its snapshot.

        It may be called again, for connections that have begun since.
        """
        if not self._has_left:
            self._has_left = True
            await leave(self.members.values())
        await self.connections.drain()

    def stop(self) -> None:
        """Makes everything durable and marks the directory as stopped cleanly. Nothing may be served any more."""
        self.publisher.close()
        self.stages.close()
        self.storage.stop()

    # What one part tells the others

    def _journal_failed(self, failure: NotDurable) -> None:
        """Fails waiting answers, and ends the streams that show rows which will never be durable."""
        self.waiting.fail(failure)
        self.connections.end_streams(lambda stream: stream.level == Level.MEMORY, EndReason.ERROR, str(failure))

    def _space_low(self) -> None:
        self.storage.checkpoints.release_replaced()
        message = "the disk is nearly full, and this stream keeps replaced segments from being removed"
        self.connections.end_streams(lambda stream: stream.keeps_files, EndReason.TOO_SLOW, message)
        self.connections.flush()

    def _feed_gone(self, feed: Feed) -> None:
        message = f"feed {feed.info.name!r} was dropped"
        for partition in feed.partitions:
            self.storage.forget(partition)
            self.leaderships.of_partition(partition).replicas.forget(partition)
            self.waiting.fail(UnknownFeed(message), partition)
        feed_id = feed.info.feed_id
        self.storage.checkpoints.release_feed(feed_id)
        self.connections.end_streams(lambda stream: True, EndReason.FEED_DROPPED, message, feed_id=feed_id)

    def _mode_changed(self, feed: Feed) -> None:
        """Ends the streams of replicas, which begin anew in the feed's new mode, and those that it refuses now."""
        feed_id, by_segments = feed.info.feed_id, feed.by_segments

        def ends(stream: PartitionStream) -> bool:
            return isinstance(stream, ReplicationStream) or (by_segments and stream.level == Level.QUORUM)

        self.storage.flusher.ages_changed()
        message = f"the feed's replication mode is {feed.info.replication} now"
        self.connections.end_streams(ends, EndReason.ERROR, message, feed_id=feed_id)

    def coordinated(self, status: Callable[[], dict[str, Any]], address_of: Callable[[str], str]) -> None:
        """Connects the coordinator: its part of the status, and the present address of a member by its name."""
        self.services.cluster_status = status
        for leadership in self.leaderships:
            leadership.located_by(address_of)

    def pause_s(self, peer: str, token: str | None) -> float:
        """Counts a refused token; returns the seconds after which that is to be told: `Authority.pause_s`."""
        return self.services.authority.pause_s(peer, token)

    # Status

    def identify(self, token: str | None, peer: str, certificate: PeerIdentity | None = None) -> Access:
        """Returns what the bearer of ``token`` may do: `Authority.identify`. Raises Forbidden."""
        return self.services.authority.identify(token, peer, certificate)

    def health(self) -> dict[str, Any]:
        """Returns whether the node is well, for a probe that asks every few seconds: `serving.status.health_of`."""
        return self._for_anyone(health_of(self.services))

    async def readiness(self) -> dict[str, Any]:
        """Returns whether the node serves clients, for a load balancer: `serving.readiness.why_not_ready`."""
        why, role = await why_not_ready(self.services), self.leaderships.unnamed.role
        return self._for_anyone({"ready": not why, "role": role.value, "failure": why or None})

    def _for_anyone(self, told: dict[str, Any]) -> dict[str, Any]:
        """Hides the reason if the node requires tokens: probes present none, and reasons may name feeds."""
        return told | {"failure": HIDDEN} if told["failure"] and self.services.authority.is_required else told

    def status(self) -> dict[str, Any]:
        """Returns the node as ``tailrace status`` and ``/api/status`` show it."""
        return status_of(self.services)

    async def status_body(self, access: Access | None = None) -> bytes:
        """Makes the JSON of ``status`` for one who has ``access``, in many turns of the loop if feeds are many."""
        return await status_body(self.services, access)

    async def metrics(self, accept: str = "", feed: str = "") -> tuple[bytes, str]:
        """Returns the metrics for Prometheus, and the content type: `serving.metrics.scrape.Scrapes.text`."""
        return await self._scrapes.text(accept, feed)

    def check(self) -> None:
        """Walks every invariant of every partition; AssertionError names the one that does not hold."""
        for partition in self.feeds.partitions():
            partition.check()


def _stages(config: Config, host: Host) -> Stages:
    limits = config.storage
    return Stages(
        host.disk,
        config.data,
        stages_max=limits.stages_max,
        bytes_max=limits.stage_bytes_max,
        kept_bytes_max=limits.stage_kept_bytes_max,
        monotonic=host.clock.monotonic,
        wall_us=host.clock.wall_us,
    )
