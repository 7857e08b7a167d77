"""The levels that a node offers, and those that a client may ask for."""

import enum

import pytest
from tests.tailrace.requests.conversation import HELLO_OK, Conversation

from tailrace.block import encode_block
from tailrace.errors import (
    NotDurable,
)
from tailrace.model import Level
from tailrace.wire.messages import Write


class Choice(enum.StrEnum):
    """A level as the options of a command have it."""

    QUORUM = "quorum"


def test_a_level_that_the_node_does_not_offer_is_named_as_it_is_written():
    made = Conversation()
    made.greet()
    with pytest.raises(NotDurable, match=r"^level quorum cannot be given by this node, which offers memory, disk$"):
        made.session.levels.level(Choice.QUORUM)


@pytest.mark.parametrize(("default", "level"), [("", Level.DISK), ("quorum", None), ("disk", None)])
def test_a_write_without_a_level_is_of_level_disk_to_a_node_that_tells_no_default(default, level):
    made = Conversation()
    made.session.connection_made()
    made.sent()
    made.hear(HELLO_OK._replace(default_level=default).encode())
    block = encode_block([b"k"], [b"v"], partition=0)
    made.session.write(made.lanes[0], block, None, made.note("w"), made.now + 10.0)
    [frame] = made.sent()
    assert Write.decode(frame.body).level is level
