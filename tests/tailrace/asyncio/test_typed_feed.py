"""A handle with serializers: the tests of the shell for trio, with a client for asyncio."""

from tests.tailrace.asyncio.bridge import over_asyncio
from tests.tailrace.trio import test_typed_feed

globals().update(over_asyncio(test_typed_feed))
