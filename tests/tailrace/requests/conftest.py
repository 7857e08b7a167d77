"""A conversation with a node that has said hello."""

import pytest
from tests.tailrace.requests.conversation import Conversation


@pytest.fixture
def made():
    return Conversation().greet()
