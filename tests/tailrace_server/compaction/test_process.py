"""A compaction in a process of its own: finished, killed, cancelled, left by its parent; and processes that fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import trio

from tailrace.errors import NoSpace
from tailrace_server.compaction.errors import BadTask, CompactionFailed
from tailrace_server.compaction.process import COMMAND, Rate, environment, error_of, run_compaction
from tailrace_server.compaction.worker import compact
from tailrace_server.host.disk import RealDisk
from tailrace_server.segment import SegmentDamaged

pytestmark = pytest.mark.slow

# No test takes so long: one that does hangs, and fails instead.
SECONDS_MAX = 120.0


class DiskOfTests(RealDisk):
    """The real one, with the way to a file's content that chains of tests use."""

    def content(self, path):
        with open(path, "rb") as file:
            return file.read()


@pytest.fixture
def chain(tmp_path, chain_of, row):
    """Two segments of 100 rows each, 10,000 bytes a row, that lz4 can't shrink."""
    chain = chain_of(DiskOfTests(), directory=str(tmp_path / "feed" / "0"))
    for begin in (1, 101):
        values = [os.urandom(10_000) for _ in range(100)]
        chain.add([row(begin + n, b"%d" % n, value) for n, value in enumerate(values)], block_rows=10)
    return chain


@pytest.fixture
def names(chain):
    """What there is in the directory, beside the inputs."""
    return lambda: sorted(set(os.listdir(chain.directory)) - {"1.seg", "2.seg"})


def script(text):
    """A process that does this instead."""
    return (sys.executable, "-c", text)


# The process, which does nothing more once it has read and written so many bytes, and says so.
STUCK = """
import threading
from tailrace_server.compaction import __main__ as process
class Limiter(process.Limiter):
    left = {nbytes}
    def __call__(self, nbytes):
        self.left -= nbytes
        if self.left < 0:
            process.say(dict(progress=7))
            threading.Event().wait()
process.ProgressReport = lambda: lambda nbytes: None
process.Limiter = Limiter
process.main()
"""
# All that is read before anything is written: the segments once, and once more for the keys that they share.
READ_FIRST = 4 * 1_000_000


class Watch:
    """Knows when the process says that it has come somewhere."""

    def __init__(self):
        self.progress = []
        self.heard = trio.Event()

    def __call__(self, nbytes):
        self.progress.append(nbytes)
        self.heard.set()


@pytest.fixture
def processes(monkeypatch):
    """Those that were started."""
    started = []
    open_process = trio.lowlevel.open_process

    async def watched(*arguments, **options):
        started.append(await open_process(*arguments, **options))
        return started[-1]

    monkeypatch.setattr("trio.lowlevel.open_process", watched)
    return started


class TestFinished:
    async def test_it_gives_what_the_worker_gives(self, chain, read_rows):
        task, watch = chain.task(), Watch()
        result = await run_compaction(task, Rate(), on_progress=watch)
        assert [found.seq for found in read_rows(chain.disk, task.output)] == list(range(101, 201))
        assert watch.progress[0] > 0
        content = chain.disk.content(task.output)
        os.remove(task.output)
        assert compact(task, chain.disk) == result
        assert chain.disk.content(task.output) == content

    async def test_errors_are_those_of_the_worker(self, chain, names):
        chain.disk.open(chain.paths[0], writable=True).write_at(500, [b"damage"], 6)
        with pytest.raises(SegmentDamaged) as caught:
            await run_compaction(chain.task(), Rate())
        assert (caught.value.path, caught.value.offset) == (chain.paths[0], 64)
        assert names() == []

    async def test_it_hears_of_another_rate_while_it_runs(self, chain, names):
        """At a byte a second it would take weeks."""
        rate, watch = Rate(1), Watch()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: run_compaction(chain.task(), rate, on_progress=watch))
            await watch.heard.wait()
            rate.set(0)
        assert names() == ["out.seg"]


class TestNotFinished:
    @pytest.mark.parametrize("nbytes", [0, READ_FIRST + 500_000])
    async def test_cancelled(self, chain, names, processes, nbytes):
        watch, command = Watch(), script(STUCK.format(nbytes=nbytes))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: run_compaction(chain.task(), Rate(), on_progress=watch, command=command))
            await watch.heard.wait()
            assert names() == (["out.seg.new"] if nbytes else [])
            nursery.cancel_scope.cancel()
        assert [process.returncode for process in processes] == [-signal.SIGKILL]
        assert names() == []

    async def test_killed(self, chain, names, processes):
        watch, command = Watch(), script(STUCK.format(nbytes=READ_FIRST + 500_000))

        async def run():
            with pytest.raises(CompactionFailed, match=r"ended by signal 9 \(Killed\); stderr: nothing"):
                await run_compaction(chain.task(), Rate(), on_progress=watch, command=command)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await watch.heard.wait()
            processes[0].kill()
        assert names() == []

    @pytest.mark.parametrize("nbytes", [0, READ_FIRST + 500_000])
    def test_its_parent_is_gone(self, chain, names, nbytes):
        process = subprocess.Popen(
            script(STUCK.format(nbytes=nbytes)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
        )
        with process:
            process.stdin.write(chain.task().encode() + b"\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == {"progress": 7}
            process.stdin.close()
            assert process.wait(SECONDS_MAX) == 3
        assert names() == (["out.seg.new"] if nbytes else [])

    def test_its_parent_is_gone_before_it_has_a_task(self):
        done = subprocess.run(COMMAND, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=environment())
        assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"")


class TestFailures:
    async def failure(self, chain, text):
        with pytest.raises(CompactionFailed) as caught:
            await run_compaction(chain.task(), Rate(1), command=script(text))
        return str(caught.value)

    async def test_a_crash_is_told_in_its_own_words(self, chain):
        assert "exit code 1; stderr: Traceback" in await self.failure(chain, "raise RuntimeError('boom')")
        assert "RuntimeError: boom" in await self.failure(chain, "raise RuntimeError('boom')")
        assert (await self.failure(chain, "import sys; sys.stderr.write('x' * 10**6 + 'the end')")).endswith("the end")

    async def test_an_end_without_a_word(self, chain):
        assert "ended with exit code 0; stderr: nothing" in await self.failure(chain, "")

    @pytest.mark.parametrize(
        "text",
        ["hello", "[]", "{}", '{"progress": "x"}', '{"result": 1}', '{"error": []}', '{"progress": 1, "more": 1}'],
    )
    async def test_words_that_nobody_understands(self, chain, text):
        assert repr(text.encode()) in await self.failure(chain, f"print({text!r}, flush=True); input(); input()")

    async def test_a_line_without_an_end(self, chain):
        assert "xxxx" in await self.failure(chain, "while True: print('x' * 10**5, end='')")

    async def test_a_result_of_another_version(self, chain):
        with pytest.raises(BadTask, match="version 2"):
            await run_compaction(chain.task(), Rate(), command=script('print(\'{"result": {"version": 2}}\')'))

    def test_what_the_process_describes_is_raised_here(self):
        assert isinstance(error_of({"kind": "NoSpace", "why": "full"}), NoSpace)
        assert isinstance(error_of({"kind": "BadTask", "why": "no"}), BadTask)
        found = error_of({"kind": "OSError", "errno": 2, "why": "No such file", "path": "/x"})
        assert isinstance(found, FileNotFoundError)
        assert found.filename == "/x"
        found = error_of({"kind": "BadBlock", "why": "odd"})
        assert isinstance(found, CompactionFailed)
        assert "BadBlock: odd" in str(found)


class TestProcess:
    async def test_it_inherits_nothing(self, chain):
        """Of the parent's descriptors none, even one that could be."""
        ours, theirs = os.pipe()
        try:
            os.set_inheritable(theirs, True)
            text = f"import os; os.fstat({theirs})"
            with pytest.raises(CompactionFailed, match="Bad file descriptor"):
                await run_compaction(chain.task(), Rate(), command=script(text))
        finally:
            os.close(ours)
            os.close(theirs)

    def test_it_yields_to_others(self):
        text = (
            "import os; from tailrace_server.compaction import __main__ as p; p._yield_to_others(); print(os.nice(0))"
        )
        done = subprocess.run(script(text), capture_output=True, check=True)
        assert int(done.stdout) >= min(19, os.nice(0) + 10)

    @pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no such policy")
    async def test_beside_writes_it_gives_way_to_every_other_program(self, chain, processes):
        """A priority counts only inside of a session, so it is in its node's; not in its group, which Ctrl-C is for."""
        rate, watch, policies = Rate(2_000_000), Watch(), set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: run_compaction(chain.task(), rate, on_progress=watch))
            while os.SCHED_IDLE not in policies:
                await watch.heard.wait()
                watch.heard = trio.Event()
                [process] = processes
                policies |= {os.sched_getscheduler(int(task)) for task in os.listdir(f"/proc/{process.pid}/task")}
            assert os.getsid(process.pid) == os.getsid(0)
            assert os.getpgid(process.pid) == process.pid
            rate.set(0)

    def test_a_task_that_is_none(self):
        with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as process:
            process.stdin.write(b"what?\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
        assert answer["error"]["kind"] == "BadTask"
        assert "no JSON" in answer["error"]["why"]
