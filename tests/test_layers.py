"""Imports run one way: a file imports from its own layer and from those below, and never in a circle."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "tailrace": ROOT / "client_sdk" / "tailrace",
    "tailrace_server": ROOT / "server" / "tailrace_server",
    "pyspark_tailrace": ROOT / "spark_sink" / "pyspark_tailrace",
}
# The rooms of the server, from the lowest layer to the highest. Rooms of one layer may import from each other.
LAYERS = (
    ("host", "config", "setting"),
    ("blocks", "chain", "tree", "state"),
    ("directory", "coordination"),
    ("segment", "journal", "manifest"),
    ("compaction",),
    ("runtime",),
    ("partition",),
    ("feeds",),
    ("upkeep", "stream"),
    ("replication", "publishing"),
    ("serving",),
    ("node", "offline"),
    ("testing",),
)
# The rooms of the client. The shells are in one layer, and import nothing from each other.
CLIENT_LAYERS = (
    ("_version", "errors", "model", "wire", "block", "segment", "tracing", "serializers", "codec"),
    ("link",),
    ("requests",),
    ("consuming", "ring"),
    ("indexes", "copies"),
    ("tls", "websocket", "processors", "socket_poll"),
    ("trio", "asyncio", "blocking"),
    ("cli",),
    ("testing",),
)
LAYERS_OF = {"tailrace_server": LAYERS, "tailrace": CLIENT_LAYERS}
SHELLS = {"trio", "asyncio", "blocking"}
# Modules that do I/O, wait, or make threads: the core of the client, below the shells, imports none of them.
IO_MODULES = {"trio", "asyncio", "anyio", "threading", "socket", "select", "selectors", "ssl", "subprocess"}
CORE = ("model", "wire", "block", "segment", "link", "requests", "consuming")


def modules():
    """(file, whether it is a package) of each module, by name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            is_package = parts[-1] == "__init__"
            found[".".join(parts[:-1] if is_package else parts)] = (path, is_package)
    return found


def targets(name, node, is_package):
    """The names that an import may mean, modules or what is in them; imports for types only count, too."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        parts = name.split(".") if is_package else name.split(".")[:-1]
        base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
    return [f"{base}.{alias.name}" for alias in node.names]


@functools.cache
def arrows():
    """The modules that each module imports."""
    known = modules()
    found = {}
    for name, (path, is_package) in known.items():
        found[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for target in targets(name, node, is_package):
                    module = target if target in known else target.rpartition(".")[0]
                    if module in known and module != name:
                        found[name].add(module)
    return found


def layer_of(name):
    """The number of the layer that a module is in; the package itself is above all layers."""
    package, _, room = name.partition(".")
    layers = LAYERS_OF[package]
    return next((number for number, layer in enumerate(layers) if room.split(".")[0] in layer), len(layers))


def room_of(name):
    """The room of the client that a module is in, or ""."""
    package, _, rest = name.partition(".")
    return rest.split(".")[0] if package == "tailrace" else ""


def circles(graph):
    """Groups of modules that import each other (Tarjan's strongly connected components)."""
    order, low, stack, found = {}, {}, [], []

    def visit(name):
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in graph[name]:
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            group = [stack.pop()]
            while group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in order:
            visit(name)
    return sorted(found)


@pytest.mark.parametrize("package", LAYERS_OF)
@pytest.mark.slow
def test_every_room_has_a_layer(package):
    rooms = {name.split(".")[1] for name in arrows() if name.startswith(f"{package}.")}
    assert rooms == {room for layer in LAYERS_OF[package] for room in layer}


@pytest.mark.parametrize("package", LAYERS_OF)
def test_no_arrow_runs_upward(package):
    upward = [
        f"{name} imports {other}"
        for name, others in arrows().items()
        for other in sorted(others)
        if name.split(".")[0] == other.split(".")[0] == package and layer_of(name) < layer_of(other)
    ]
    assert upward == []


def test_no_shell_imports_another():
    across = [
        f"{name} imports {other}"
        for name, others in arrows().items()
        for other in sorted(others)
        if {room_of(name), room_of(other)} <= SHELLS and room_of(name) != room_of(other)
    ]
    assert across == []


def test_the_core_of_the_client_does_no_io():
    found = []
    for name, (path, _) in modules().items():
        if room_of(name) in CORE:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    found += [(name, alias.name) for alias in node.names if alias.name.split(".")[0] in IO_MODULES]
                elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in IO_MODULES:
                    found.append((name, node.module))
    assert found == []


def test_no_files_import_each_other_in_a_circle():
    assert circles(arrows()) == []


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, [["a", "b"]]),
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}}, [["a", "b", "c"]]),
    ],
)
def test_circles_are_found(graph, found):
    assert circles(graph) == found
