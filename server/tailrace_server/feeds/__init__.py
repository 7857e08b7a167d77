"""Keeps the feeds of a node: the catalog, and how it comes back at a start."""
