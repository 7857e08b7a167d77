import threading

import pytest
import trio

from tailrace.trio.worker_thread import WorkerThread

pytestmark = pytest.mark.slow


@pytest.fixture
def worker():
    made = WorkerThread("a test's")
    made.start()
    yield made
    made.stop()


async def test_everything_runs_on_one_thread(worker):
    threads = {await worker.run(threading.current_thread) for _ in range(5)}
    (thread,) = threads
    assert thread is not threading.current_thread()
    assert thread.name == "a test's"


async def test_results_and_exceptions_come_back(worker):
    assert await worker.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await worker.run(divmod, 7, 0)
    assert await worker.run(len, "still there") == 11


async def test_a_cancellation_waits_for_what_is_under_way(worker):
    begun, end = threading.Event(), threading.Event()

    def work():
        begun.set()
        end.wait()
        return 1

    results = []

    async def run():
        results.append(await worker.run(work))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.to_thread.run_sync(begun.wait)
        nursery.cancel_scope.cancel()
        end.set()
    assert results == [1]


async def test_it_ends_when_it_is_stopped():
    made = WorkerThread("stopped")
    made.start()
    thread = await made.run(threading.current_thread)
    made.stop()
    await trio.to_thread.run_sync(thread.join)
    assert not thread.is_alive()
