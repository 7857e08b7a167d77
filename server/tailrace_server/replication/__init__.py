"""Nodes that hold the same feeds: who leads, how others follow, what waits for a majority, how one comes to lead."""
