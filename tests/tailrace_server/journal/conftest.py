"""A journal on a disk in memory."""

import pytest

from tailrace_server.journal import open_journal


@pytest.fixture
def disk(memory_disk):
    return memory_disk()


@pytest.fixture
def journal(disk):
    return open_journal(disk, "/journal")[0]
