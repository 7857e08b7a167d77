"""Requests to a node, without I/O: sessions that survive their connections, lanes of writes, and plans of calls.

    Feed.put of a shell ──> plan (``feed_core``) ──step──> ``session`` and ``lane`` ──frames──> the shell's link

The client for trio and the blocking client are shells around these files.
"""
