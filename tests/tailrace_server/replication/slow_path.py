"""Lets a follower take each block by ``ReplicaPuller._take``, which a test has changed, and none by the faster way."""

from __future__ import annotations


def never_now(puller, event):
    """In place of ``ReplicaPuller._take_now``: it has to wait."""
    return False
