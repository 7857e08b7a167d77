"""The calls of a client: the tests of the shell for trio, with a client for asyncio."""

from tests.tailrace.asyncio.bridge import over_asyncio
from tests.tailrace.trio import test_client

# A task of asyncio runs until it first waits, though it is cancelled, and the request is queued by then.
globals().update(over_asyncio(test_client, "test_a_call_within_a_cancelled_scope_is_never_sent"))
