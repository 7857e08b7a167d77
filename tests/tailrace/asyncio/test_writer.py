"""A writer: the tests of the shell for trio, with a client for asyncio."""

from tests.tailrace.asyncio.bridge import over_asyncio
from tests.tailrace.trio import test_writer

globals().update(
    over_asyncio(
        test_writer,
        # It cuts the connection with a block on its way, which only a node in the same thread can be sure of.
        "test_what_is_unanswered_when_the_connection_breaks_is_written_once",
    )
)
