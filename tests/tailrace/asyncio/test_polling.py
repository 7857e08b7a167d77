"""Consumers whose steps are cancelled: the tests of the shell for trio, with a client for asyncio."""

from tests.tailrace import test_polling
from tests.tailrace.asyncio.bridge import over_asyncio

globals().update(
    over_asyncio(
        test_polling,
        # Their connections are those of a host for simulators.
        "test_a_polled_stream_connects_though_that_takes_longer_than_a_poll",
        "test_items_of_a_large_partition_come_in_steps_that_are_all_too_short",
        # Here each call is a task of its own.
        "test_a_barrier_in_the_task_of_the_loop_is_refused",
    )
)
