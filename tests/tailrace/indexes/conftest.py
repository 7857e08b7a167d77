"""Mutations and checkpoints for every index, as the contract has them."""

import pytest
from tests.tailrace.indexes.postgres_server import postgres_server

from tailrace.testing.index_calls import checkpoint_at, mutation


@pytest.fixture
def make_checkpoint():
    """A function from {partition: seq}, or {partition: Position}, to a checkpoint."""
    return checkpoint_at


@pytest.fixture
def put():
    """A function that makes a mutation whose value is JSON with a title and a text; text None deletes the key."""
    return mutation


@pytest.fixture(scope="session")
def postgres():
    """A real PostgreSQL server, one for all tests of a process."""
    with postgres_server() as server:
        yield server
