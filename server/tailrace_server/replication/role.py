"""What a node is to all of its partitions at once: the leader, or a follower of one."""

from __future__ import annotations

import enum


class Role(enum.Enum):
    """The value is its name on the wire: HELLO_OK, STREAM_REQUEST, ``tailrace status``."""

    LEADER = "leader"
    FOLLOWER = "follower"
