"""Nodes that grow: by partitions, and by mutations."""
