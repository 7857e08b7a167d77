"""Requests to a node, sans-IO: a session that survives its connections (``session``), and the order of writes
(``lane``). The trio and the blocking client are shells around them."""
