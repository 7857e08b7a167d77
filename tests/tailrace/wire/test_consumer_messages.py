"""The messages about names and groups: what is refused before it is used."""

import pytest

from tailrace.errors import ProtocolError
from tailrace.wire.consumer_messages import ConsumerId, Join
from tailrace.wire.frames import FRAME_HEADER_BYTES


def test_a_member_of_a_group_names_no_partitions():
    """A group would have the partitions of its first member only, and members would get some that they did not name."""
    join = Join(ConsumerId(bytes(16), "group", "workers"), bytes(16), partitions=(0,))
    with pytest.raises(ProtocolError, match="members of a group share all"):
        Join.decode(memoryview(join.encode(5))[FRAME_HEADER_BYTES:])
