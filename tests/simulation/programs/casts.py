"""The programs of a run: those of one node are checked at every moment, those of a set by levels."""

from __future__ import annotations

from typing import NamedTuple

from ..checks.groups import GroupBook
from .consumers import ConsumingProcess
from .fetchers import FetchingProcess
from .followers import CrashingFollower, FollowingProcess, LevelFollower
from .founders import FeedFounder, SetFounder
from .indexes import chosen
from .keys import ANY, keys_of_each_level, keys_of_each_partition
from .members import MEMBERS, GroupMember
from .process import Process
from .readers import LookingProcess, StateReader
from .registers import RegisterProcess
from .sinks import Sink
from .switchers import ModeSwitcher
from .writers import LevelWriter, ModelWriter


class Cast(NamedTuple):
    """All programs that use the feed. ``programs``: all but sinks, in the order in which they are started.

    Faults come to these programs. A sink decides itself when its driver dies.
    """

    followers: list[FollowingProcess]
    writers: list[Process]
    others: list[Process]
    sinks: list[Sink]
    programs: list[Process]


def new_keys(plan, partition_of):
    """Returns the keys that the programs of a run use."""
    if plan.is_set:
        return keys_of_each_level(partition_of)
    return keys_of_each_partition(partition_of, plan.partitions)


def new_cast(world):
    """Returns the programs of a run, none of them started."""
    if world.plan.has_copies:
        return _cast_of_copies(world)
    if world.plan.has_groups:
        return _cast_of_groups(world)
    if world.plan.way:
        return _cast_of_segments(world)
    return _cast_of_set(world) if world.plan.is_set else _cast_of_one_node(world)


def _cast_of_copies(world):
    if world.plan.is_set:
        fetchers = [
            FetchingProcess(world, "fetcher", level="quorum"),
            FetchingProcess(world, "fetcher-of-followers", "follower"),
        ]
        writers = [
            LevelWriter(world, "writer-disk", "disk"),
            LevelWriter(world, "writer-memory", "memory", 0.1),
            LevelWriter(world, "writer-quorum", "quorum", keys="safe"),
        ]
        sinks = [Sink(world, "sink", "disk")] if world.plan.has_sink else []
    else:
        fetchers = [FetchingProcess(world, "fetcher"), FetchingProcess(world, "restless")]
        writers = [
            ModelWriter(world, "writer-1"),
            ModelWriter(world, "writer-2", "memory"),
            ModelWriter(world, "writer-3", pipelined=True),
        ]
        sinks = [Sink(world, "sink", ANY, stray_chance=0.3)] if world.plan.has_sink else []
    return Cast([], writers, fetchers, sinks, [*writers, *fetchers])


def _cast_of_groups(world):
    book = GroupBook(world.report)
    later = [GroupMember(world, f"member-{number}", book) for number in range(2, MEMBERS + 1)]
    writers = [
        LevelWriter(world, "writer-disk", "disk", 0.1),
        LevelWriter(world, "writer-memory", "memory", 0.1),
        LevelWriter(world, "writer-quorum", "quorum", 0.1, keys="safe"),
    ]
    members = [GroupMember(world, "member-1", book, [*later, *writers]), *later]
    return Cast([], writers, members, [], [*writers, *members])


def _cast_of_segments(world):
    """Returns programs that write much, of which those at level quorum survive its refusal by mode ``segment``."""
    has_quorum = world.plan.way != "push"
    followers = [LevelFollower(world, "follower-disk", "disk")]
    writers = [
        LevelWriter(world, "writer-disk", "disk", 0.1),
        LevelWriter(world, "writer-memory", "memory", 0.1),
    ]
    if has_quorum:
        writers.append(LevelWriter(world, "writer-quorum", "quorum", keys="safe"))
    others = [StateReader(world, "reader"), SetFounder(world, "founder")]
    if world.plan.way == "switch":
        others.append(ModeSwitcher(world, "switcher"))
    sinks = [Sink(world, "sink", "disk")] if world.plan.has_sink else []
    return Cast(followers, writers, others, sinks, [*followers, *writers, *others])


def _cast_of_one_node(world):
    kinds = chosen(world.random_of("indexes"), 3)
    prefix = world.random_of("filter").choice((b"key 1", b"key 2", b"none"))
    followers = [
        CrashingFollower(world, "steady", kinds[0]),
        CrashingFollower(world, "restless", kinds[1]),
        CrashingFollower(world, "hasty", kinds[2], "memory"),
    ]
    writers = [
        ModelWriter(world, "writer-1"),
        ModelWriter(world, "writer-2", "memory"),
        ModelWriter(world, "writer-3", pipelined=True),
    ]
    others = [
        ConsumingProcess(world, "consumer"),
        ConsumingProcess(world, "choosy", key_prefix=prefix),
        ConsumingProcess(world, "terse", key_prefix=b"key ", keys_only=True),
        LookingProcess(world, "looker"),
        FeedFounder(world, "founder"),
    ]
    sinks = [Sink(world, "sink", ANY, stray_chance=0.3)] if world.plan.has_sink else []
    return Cast(followers, writers, others, sinks, [*writers, *followers, *others])


def _cast_of_set(world):
    followers = [
        LevelFollower(world, "follower-quorum", "quorum"),
        LevelFollower(world, "follower-disk", "disk"),
    ]
    writers = [
        RegisterProcess(world, "register-1"),
        RegisterProcess(world, "register-2"),
        RegisterProcess(world, "register-3"),
        RegisterProcess(world, "looker", only="looks"),
        RegisterProcess(world, "refused", only="refusals"),
        LevelWriter(world, "writer-disk", "disk"),
        LevelWriter(world, "writer-memory", "memory", 0.1),
        LevelWriter(world, "writer-quorum", "quorum", keys="safe"),
    ]
    others = [StateReader(world, "reader"), SetFounder(world, "founder")]
    sinks = [Sink(world, "sink", "disk")] if world.plan.has_sink else []
    return Cast(followers, writers, others, sinks, [*followers, *writers, *others])
