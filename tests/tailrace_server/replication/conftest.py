"""Sets of nodes in this process."""

import functools

import pytest

from tests.tailrace_server.replication.made_set import make_set


@pytest.fixture
def new_set(tmp_path, nursery):
    """A function that makes a set of new nodes, none of them started."""
    return functools.partial(make_set, tmp_path, nursery)


@pytest.fixture
async def members(new_set):
    """A set of three, with a leader."""
    made = new_set()
    await made.start()
    await made.settled()
    return made
