"""Finds the node to talk to: addresses, the search for the leader, pauses between tries. Pure."""
