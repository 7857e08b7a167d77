"""The thread of an index."""

import asyncio
import threading

import pytest
from tests.tailrace.asyncio.bridge import run

from tailrace.asyncio.worker_thread import WorkerThread

pytestmark = pytest.mark.slow


@pytest.fixture
def worker():
    made = WorkerThread("a test's")
    made.start()
    yield made
    made.stop()


def test_everything_runs_on_one_thread(worker):
    async def main():
        return {await worker.run(threading.current_thread) for _ in range(5)}

    (thread,) = run(main)
    assert thread is not threading.current_thread()
    assert thread.name == "a test's"


def test_results_and_exceptions_come_back(worker):
    async def main():
        assert await worker.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await worker.run(divmod, 7, 0)
        assert await worker.run(len, "still there") == 11

    run(main)


def test_a_cancellation_waits_for_what_is_under_way_and_goes_on(worker):
    async def main():
        begun, end, ended = threading.Event(), threading.Event(), []

        def work():
            begun.set()
            end.wait()
            ended.append(True)

        task = asyncio.create_task(worker.run(work))
        await asyncio.to_thread(begun.wait)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True]

    run(main)


def test_it_ends_when_it_is_stopped():
    made = WorkerThread("stopped")
    made.start()

    async def main():
        return await made.run(threading.current_thread)

    thread = run(main)
    made.stop()
    thread.join()
    assert not thread.is_alive()
