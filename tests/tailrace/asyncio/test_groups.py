"""Groups: the tests of the shell for trio, with a client for asyncio."""

from tests.tailrace.asyncio.bridge import over_asyncio
from tests.tailrace.trio import test_groups

# Two tests reach into the stream's own tasks.
OF_TRIO = ("test_a_silent_member_loses", "test_a_member_hands_out_nothing")

found = over_asyncio(test_groups)
globals().update({name: each for name, each in found.items() if not name.startswith(OF_TRIO)})
