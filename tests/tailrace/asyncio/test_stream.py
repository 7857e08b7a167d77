"""A consumer: the tests of the shell for trio, with a client for asyncio."""

from tests.tailrace.asyncio.bridge import over_asyncio
from tests.tailrace.trio import test_stream

globals().update(over_asyncio(test_stream, "test_reads_without_a_turn_of_the_loop_are_bounded"))
