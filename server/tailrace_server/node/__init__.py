"""Puts a node together from its parts, starts it and runs it: the composition root."""
