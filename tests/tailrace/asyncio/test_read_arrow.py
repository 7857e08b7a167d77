"""The latest state as a table, and streams as batches: the tests of the shell for trio, with a client for asyncio."""

from tests.tailrace.asyncio.bridge import over_asyncio
from tests.tailrace.trio import test_read_arrow

globals().update(over_asyncio(test_read_arrow))
