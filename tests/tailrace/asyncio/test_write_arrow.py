"""Arrow data through a feed and a writer: the tests of the shell for trio, with a client for asyncio."""

from tests.tailrace.asyncio.bridge import over_asyncio
from tests.tailrace.trio import test_write_arrow

globals().update(over_asyncio(test_write_arrow))
