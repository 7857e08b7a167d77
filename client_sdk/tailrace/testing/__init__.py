"""Nodes and sets for the tests of programs that use Tailrace, and the contract of indexes as tests.

pytest gets the fixtures ``tailrace_node``, ``tailrace_shared_node`` and ``tailrace_set`` by itself. Others use the same
nodes as contexts. They need the extra of the server: ``pip install 'tailrace[testing]'``.

    with tailrace.testing.node() as node:
        with tailrace.blocking.connect(node.url) as client: ...
"""

from __future__ import annotations

import contextlib
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.testing.node import FORKS, Node, NodeFailed
from tailrace.testing.node_set import NodeSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.testing.index_contract import IndexContract

__all__ = ["IndexContract", "Node", "NodeFailed", "NodeSet", "node", "node_set", "warm_up"]

if not TYPE_CHECKING:  # a type checker would take each name for one of this package

    def __getattr__(name: str) -> Any:
        """Loads the contract when it is first used: it needs pytest."""
        if name != "IndexContract":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module("tailrace.testing.index_contract").IndexContract


def warm_up() -> None:
    """Begins to load the server in a process of its own, and does not wait. The first node starts faster then."""
    FORKS.warm_up()


@contextlib.contextmanager
def node(folder: Path | str | None = None, *, options: Sequence[str] = (), http: str = "off") -> Iterator[Node]:
    """Runs a node while the body does, on an empty directory.

    Args:
        folder: The folder for its directory and its log; by default a temporary one, which is removed.
        options: More options of ``tailrace serve``, such as ``["--auth"]``.
        http: The address of HTTP, such as "127.0.0.1:4780"; "off" for none.

    Returns:
        A context with the `Node`. Its end stops the node cleanly; if the body has raised, at once.

    Raises:
        NodeFailed: The node has not come up, or did not stop cleanly.
    """
    with _folder(folder) as path:
        made = Node(path / "node", options=options, http=http, log_path=path / "node.log")
        try:
            made.start()
            yield made
            made.stop()
        finally:
            made.end_at_once()


@contextlib.contextmanager
def node_set(folder: Path | str | None = None, *, count: int = 3, options: Sequence[str] = ()) -> Iterator[NodeSet]:
    """Runs a set of nodes while the body does, on empty directories.

    Args:
        folder: The folder for their directories and logs; by default a temporary one, which is removed.
        count: The number of members.
        options: More options of ``tailrace serve`` for each member.

    Returns:
        A context with the `NodeSet`, which has a leader. Its end stops all members.

    Raises:
        NodeFailed: A member has not come up, or did not stop cleanly.
    """
    with _folder(folder) as path:
        made = NodeSet(path, count, options)
        try:
            made.start()
            yield made
            made.stop()
        finally:
            made.end_at_once()


@contextlib.contextmanager
def _folder(given: Path | str | None) -> Iterator[Path]:
    if given is not None:
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="tailrace-") as folder:
        yield Path(folder)
