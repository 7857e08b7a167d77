"""The consumer, sans-IO: its subscription, its partitions and its conversation with a node (``session``).

The shells around it are `tailrace.trio.stream` and `tailrace.blocking.stream`.
"""
