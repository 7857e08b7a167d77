"""Partitions whose next rows are gone: the tests of the shell for trio, with a client for asyncio."""

from tests.tailrace import test_data_gone
from tests.tailrace.asyncio.bridge import over_asyncio

globals().update(over_asyncio(test_data_gone, "test_without_async"))
