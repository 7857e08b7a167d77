"""Nodes that hold the same feeds: who leads, how the others follow, and how another one comes to lead."""
