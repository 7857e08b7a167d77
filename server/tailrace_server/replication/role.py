"""The role of a node in a group of partitions: the leader, or a follower of one."""

from __future__ import annotations

import enum


class Role(enum.Enum):
    """The value is the name on the wire: HELLO_OK, STREAM_REQUEST, ``tailrace status``."""

    LEADER = "leader"
    FOLLOWER = "follower"
