"""Connections and streams without news, and what they cost a node."""
