"""Watches what a short way takes of the bytes that a node has read."""


def watched(node, monkeypatch, opcode, take):
    """For each read the bytes that ``take`` took, and those that it had, once it was asked as the way of ``opcode``."""
    found = []

    def noted(connection, data):
        found.append((take(connection, data), len(data)))
        return found[-1][0]

    monkeypatch.setitem(node.services.short_ways, opcode, noted)
    return found
