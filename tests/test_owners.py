"""State has one owner: the fields of a class are assigned in its own file only. Other files call methods, and read.

To add a class, add a line to ``OWNERS``: the class, its file, and the names that its values go by in other files of its
package. The fields need no list: they are the attributes that the class assigns to ``self``, its annotated class
attributes, its ``__slots__`` and its properties with a setter.

How the test decides. It has no types, so it goes by names. It looks at each assignment to an attribute (plain,
augmented, annotated, in a tuple, of an item, as the target of ``for`` and ``with``, by ``del``, ``setattr`` and
``delattr``) in the sources of the owner's package. If the attribute is a field of an owner, the receiver decides:

    partition.high_seq = 5              reported, unless the file is the owner's: ``partition`` is a name of the owner
    self.partition.high_seq = 5         reported: the receiver's last name counts, without leading underscores
    feed.partitions[0].high_seq = 5     reported: of what is indexed or called the name counts, without a plural's "s"
    anything.leader_durable_seq = 5     reported: no other class of the package has a field of this name
    self.high_seq = 5                   not reported: the object's own field

A call that changes a part of the owner counts as an assignment: ``partition.sinks.tell(...)`` is reported if the
owner's line names ``sinks`` with the methods that change it.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("client_sdk/tailrace", "server/tailrace_server", "spark_sink/pyspark_tailrace")
SERVER = "server/tailrace_server"
REQUESTS = "client_sdk/tailrace/requests"
CONSUMING = "client_sdk/tailrace/consuming"


class Owner(NamedTuple):
    """A class whose fields only its own file changes.

    ``names`` are those of its values in other files. ``parts`` are fields of the owner, with their methods that change
    them: the owner alone calls these.
    """

    class_name: str
    file: str
    names: frozenset[str]
    parts: tuple[tuple[str, frozenset[str]], ...]

    @property
    def package(self):
        return "/".join(self.file.split("/")[:2])


def owner(class_name, file, names, **parts):
    methods = tuple((part, frozenset(of.split())) for part, of in parts.items())
    return Owner(class_name, file, frozenset(names.split()), methods)


OWNERS = (
    owner(
        "RequestQueue", f"{REQUESTS}/request_queue.py", "queue", requests="pop clear update", unsent="pop clear update"
    ),
    owner("OfferedLevels", f"{REQUESTS}/offered_levels.py", "levels"),
    owner("PushState", f"{SERVER}/partition/pushes.py", "pushes"),
    owner("Watchers", f"{SERVER}/partition/watchers.py", "watchers"),
    owner(
        "Partition",
        f"{SERVER}/partition/partition.py",
        "partition p listed",
        account="change",
        journal_references="block control manifest_written cut",
        keys="catch_up drop_through",
        producers="record record_all restore drop_above join_told set_leader_seq charge_to evict_through",
        published="add drop_through drop_above",
        sinks="tell flushed forget_above",
    ),
    owner(
        "ConsumedPartition",
        f"{CONSUMING}/partition.py",
        "partition consumed p",
        ring="add add_block add_chunk apply clear",
    ),
    owner("PartitionStreams", f"{CONSUMING}/streams.py", "streams", handled="pop clear update setdefault"),
    owner("StreamEnds", f"{CONSUMING}/stream_ends.py", "ends"),
    owner("StreamCredits", f"{CONSUMING}/stream_credits.py", "credits"),
    owner("PartitionRollback", f"{CONSUMING}/rollbacks.py", "rollback"),
    owner("Rollbacks", f"{CONSUMING}/rollbacks.py", "rollbacks"),
    owner("CatchUp", f"{CONSUMING}/catch_up.py", "catch_up"),
    owner("PartitionCatchUp", f"{CONSUMING}/partition_catch_up.py", "copy"),
    owner("Barriers", f"{CONSUMING}/barriers.py", "barriers"),
    owner("Credit", f"{CONSUMING}/credit.py", "credit"),
    owner("ConsumerSession", f"{CONSUMING}/session.py", "session"),
    owner("Leadership", f"{SERVER}/replication/leadership.py", "leadership"),
    owner("Leaderships", f"{SERVER}/replication/leaderships.py", "leaderships"),
    owner("Member", f"{SERVER}/replication/member.py", "member"),
    owner("LocalMember", f"{SERVER}/replication/local_member.py", "local"),
    owner("MemberList", f"{SERVER}/replication/member_list.py", "members"),
    owner("PeerStates", f"{SERVER}/replication/peer_states.py", "peers"),
    owner("MembershipFile", f"{SERVER}/replication/membership.py", "file"),
    owner("Following", f"{SERVER}/replication/following.py", "following"),
    owner("ReplicaPuller", f"{SERVER}/replication/replica_puller.py", "puller"),
    owner("PulledSnapshots", f"{SERVER}/replication/pulled_snapshots.py", "snapshots", runs="pop clear"),
    owner("Replicas", f"{SERVER}/replication/replicas.py", "replicas"),
    owner("Peer", f"{SERVER}/replication/replicas.py", "peer"),
    owner("Acknowledgements", f"{SERVER}/replication/quorum.py", "acknowledgements quorum"),
    owner("Confirmations", f"{SERVER}/replication/read_index.py", "confirmations"),
    owner("WaitingAnswers", f"{SERVER}/replication/waiting.py", "waiting"),
    owner("Connection", f"{SERVER}/serving/connection.py", "connection"),
    owner("StreamPump", f"{SERVER}/serving/stream_pump.py", "stream_pump"),
    owner("ConnectionMemory", f"{SERVER}/serving/connection_memory.py", "memory"),
    owner("PartitionStream", f"{SERVER}/stream/partition_stream.py", "stream s ended"),
    owner("ReplicationStream", f"{SERVER}/stream/replication_stream.py", "stream"),
    owner("StreamSlot", f"{SERVER}/stream/stream_slot.py", "slot holder interrupted"),
    owner("ChunkReads", f"{SERVER}/stream/chunk_reads.py", "reads", queue="pop popitem clear update"),
    owner("HeldRows", f"{SERVER}/stream/held_rows.py", "held"),
    owner("Deadlines", f"{SERVER}/stream/deadlines.py", "deadlines"),
    owner("StreamBarriers", f"{SERVER}/stream/stream_barriers.py", "barriers"),
    owner("Window", f"{SERVER}/stream/window.py", "window", unhandled="sent credited"),
    owner(
        "Rounds",
        f"{SERVER}/stream/rounds.py",
        "rounds",
        slots="pop popitem clear update setdefault",
        barriers="delivered ended",
        deadlines="add forget take_passed",
        window="resize credited sent sent_few",
    ),
)


class Source(NamedTuple):
    """A module: the fields of each class, by its name, and its changes of attributes. It keeps no tree."""

    classes: dict[str, set[str]]
    changes: list[Change]


def read(text):
    """The `Source` of a module's text."""
    nodes = list(ast.walk(ast.parse(text)))
    return Source(
        {node.name: assigned_fields(node) for node in nodes if isinstance(node, ast.ClassDef)}, list(changes(nodes))
    )


def assigned_fields(class_node):
    """The attributes that a class assigns to ``self``, annotates, or names in ``__slots__``, and its setters."""
    found = set()
    for node in class_node.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__slots__" for t in node.targets):
            found |= {item.value for item in ast.walk(node.value) if isinstance(item, ast.Constant)}
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(decorator, ast.Attribute) and decorator.attr == "setter" for decorator in node.decorator_list
        ):
            found.add(node.name)
    for node in ast.walk(class_node):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            found.add(node.attr)
    return found


def is_self(receiver):
    return isinstance(receiver, ast.Name) and receiver.id == "self"


def fields_by_class(sources):
    """{(file, class): fields} of all classes in ``sources``, which are {file: source}."""
    return {(file, name): fields for file, source in sources.items() for name, fields in source.classes.items()}


def name_of(receiver):
    """The name that a receiver goes by: the last one, without underscores before it, in the singular."""
    while isinstance(receiver, ast.Subscript | ast.Call):
        receiver = receiver.value if isinstance(receiver, ast.Subscript) else receiver.func
        inner = name_of(receiver)
        return inner.removesuffix("s")
    name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
    return name.lstrip("_")


class Change(NamedTuple):
    """An assignment to ``receiver.attribute``, or a call of its ``method``."""

    line: int
    receiver: ast.expr
    attribute: str
    method: str | None = None


def changes(nodes):
    """Yields each assignment to an attribute or its items, and each call ``receiver.attribute.method()``."""
    for node in nodes:
        match node:
            case ast.Attribute(value=receiver, attr=attribute, ctx=ast.Store() | ast.Del()):
                yield Change(node.lineno, receiver, attribute)
            case ast.Subscript(value=ast.Attribute(receiver, attribute), ctx=ast.Store() | ast.Del()):
                yield Change(node.lineno, receiver, attribute)
            case ast.Call(func=ast.Name("setattr" | "delattr"), args=[receiver, ast.Constant(attribute), *_]):
                yield Change(node.lineno, receiver, attribute)
            case ast.Call(func=ast.Attribute(ast.Attribute(receiver, attribute), method)):
                yield Change(node.lineno, receiver, attribute, method)


def violations(sources, owners):
    """Lines "file:line: ..." of each change of an owner's field in another file; ``sources`` are {file: source}."""
    classes = fields_by_class(sources)
    unique_of = {one: unique_fields(one, classes) for one in owners}
    found = []
    for file, source in sources.items():
        others = [one for one in owners if one.file != file and file.startswith(one.package)]
        for one in others:
            fields, unique, parts = classes[one.file, one.class_name], unique_of[one], dict(one.parts)
            for line, receiver, attribute, method in source.changes:
                if attribute not in (fields if method is None else parts):
                    continue
                text = f"{file}:{line}: {ast.unparse(receiver)}.{attribute}"
                is_named = name_of(receiver) in one.names
                if method is not None:
                    if is_named and method in parts[attribute]:
                        found.append(f"{text}.{method}() changes a part of {one.class_name}")
                elif not is_self(receiver) and (is_named or attribute in unique):
                    found.append(f"{text} is a field of {one.class_name}, which alone assigns it")
    return sorted(found)


def unique_fields(one, classes):
    """The fields of an owner that no other class of its package has."""
    elsewhere = [
        fields
        for (file, name), fields in classes.items()
        if (file, name) != (one.file, one.class_name) and file.startswith(one.package)
    ]
    return classes[one.file, one.class_name].difference(*elsewhere)


@functools.cache
def product():
    """{file: source} of all modules of the three packages."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): read(path.read_text()) for path in paths}


@pytest.mark.slow
def test_state_has_one_owner():
    found = violations(product(), OWNERS)
    assert not found, "\n".join(["call a method of the owner instead:", *found])


def test_every_part_that_an_owner_names_is_a_field_of_it():
    classes = fields_by_class(product())
    for one in OWNERS:
        assert set(dict(one.parts)) <= classes[one.file, one.class_name]


# The test of the test.

THING = """
class Thing:
    __slots__ = ("slot",)
    noted: int

    def __init__(self):
        self.size = 0
        self.rarely_named, self._hidden = 1, 2
        self.log = []

    @property
    def table(self):
        return 1

    @table.setter
    def table(self, table):
        self._hidden = table
"""
OTHER = """
class Other:
    def __init__(self):
        self.size = 0
"""
SMALL_OWNERS = (owner("Thing", "some/package/thing.py", "thing", log="append"),)


def reported(source, file="some/package/user.py"):
    sources = {"some/package/thing.py": THING, "some/package/other.py": OTHER, file: source}
    return violations({name: read(text) for name, text in sources.items()}, SMALL_OWNERS)


def test_fields_are_read_from_the_class():
    [node] = ast.parse(THING).body
    assert assigned_fields(node) == {"slot", "noted", "size", "rarely_named", "_hidden", "log", "table"}


@pytest.mark.parametrize(
    "source",
    [
        "thing.size = 1",
        "thing.size += 1",
        "thing.size: int = 1",
        "del thing.size",
        "thing.log[0] = 1",
        "thing.log[0], x = 1, 2",
        "del thing.log[0]",
        "thing.slot, other = 1, 2",
        "(a, [thing.size, *thing.noted]) = 1",
        "for thing.size in range(3): pass",
        "with open('a') as thing.size: pass",
        "setattr(thing, 'size', 1)",
        "delattr(thing, 'size')",
        "self.thing.size = 1",
        "self._thing.size = 1",
        "a.b.things[0].size = 1",
        "things[0].size = 1",
        "self.thing_of().rarely_named = 1",
        "thing.table = 1",
        "x.rarely_named = 1",
        "thing.log.append(1)",
        "self._thing.log.append(1)",
    ],
)
def test_a_change_from_another_file_is_reported(source):
    [line] = {line.split(": ")[0] for line in reported(f"\n{source}")}
    assert line == "some/package/user.py:2"


@pytest.mark.parametrize(
    "source",
    [
        "thing.size",
        "size = thing.size",
        "thing.change(size=1)",
        "self.size = 1",
        "self.rarely_named = 1",
        "x.size = 1",
        "thing.unknown = 1",
        "thing.log.copy()",
        "x.log.append(1)",
        "thing.size.value = 1",
    ],
)
def test_what_changes_no_owned_field_is_not_reported(source):
    assert reported(source) == []


def test_the_owner_may_change_its_own_fields():
    assert reported(f"{THING}\nthing.size = 1", "some/package/thing.py") == []


def test_another_package_has_values_of_this_name_too():
    assert reported("thing.size = 1", "some/program/user.py") == []
