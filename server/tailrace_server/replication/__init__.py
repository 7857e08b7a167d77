"""Nodes that hold the same feeds: who leads, how the others follow, what waits for a majority, how another one leads."""
