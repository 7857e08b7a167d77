"""The members of a group fill one index: the tests of the shell for trio, with a client for asyncio."""

from tests.tailrace.asyncio.bridge import over_asyncio
from tests.tailrace.trio import test_shared_index

globals().update(over_asyncio(test_shared_index))
