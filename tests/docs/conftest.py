"""A node in a process of its own, for the commands of the guides."""

from __future__ import annotations

from tests.processes import node_process, start_node

__all__ = ["node_process", "start_node"]
