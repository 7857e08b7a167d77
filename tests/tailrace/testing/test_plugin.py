"""The plugin in runs of pytest as users have them: they leave no process behind, however they end."""

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

NAME_PROCESSES = """
    import os

    def name(*nodes):
        with open(os.environ["PIDS"], "a") as pids:
            for node in nodes:
                template = int(open(f"/proc/{node.pid}/stat").read().rpartition(")")[2].split()[1])
                print(node.pid, template, sep="\\n", file=pids)
"""

ALL = """
    import asyncio
    import threading

    import pytest
    import tailrace
    from processes import name

    def put(url):
        with tailrace.blocking.connect(url) as client:
            feed = client.create_feed("shop", partitions=1, exist_ok=True)
            return feed.put(b"k", b"v").seq

    def test_a_node(tailrace_node):
        name(tailrace_node)
        assert put(tailrace_node.url) == 1

    def test_another_node(tailrace_node):
        assert put(tailrace_node.url) == 1

    @pytest.mark.parametrize("number", [1, 2])
    def test_a_shared_node(tailrace_shared_node, number):
        name(tailrace_shared_node)
        put(tailrace_shared_node.url)

    def test_nodes(tailrace_make_node):
        one, other = tailrace_make_node(), tailrace_make_node(options=["--auth"])
        name(one, other)
        put(one.url)
        with pytest.raises(tailrace.Forbidden):
            put(other.url)

    def test_a_set(tailrace_set):
        name(*tailrace_set.nodes)
        assert put(tailrace_set.url) == 1

    @pytest.mark.trio
    async def test_with_trio(tailrace_node):
        async with tailrace.connect(tailrace_node.url) as client:
            feed = await client.create_feed("shop")
            await feed.put(b"k", b"v")
            tailrace_node.kill()
            tailrace_node.start()
            assert (await feed.get(b"k")).value == b"v"

    def test_within_asyncio(tailrace_make_node):
        async def main():
            return put(tailrace_make_node().url)

        assert asyncio.run(main()) == 1

    def test_in_a_thread(tailrace_node):
        thread = threading.Thread(target=tailrace_node.kill)
        thread.start()
        thread.join()
        tailrace_node.start()
        put(tailrace_node.url)
"""

WAITS = """
    import threading
    from processes import name

    def test_that_waits(tailrace_node, tailrace_set):
        name(tailrace_node, *tailrace_set.nodes)
        print("waits", flush=True)
        threading.Event().wait()
"""


def with_processes(text):
    return {"processes.py": NAME_PROCESSES, "test_user.py": text}


@pytest.mark.parametrize(
    "arguments",
    [pytest.param([], id="alone"), pytest.param(["-n", "2"], id="with two workers", marks=pytest.mark.long)],
)
def test_fixtures(run_pytest, arguments):
    run = run_pytest(with_processes(ALL), *arguments)
    assert run.passed() == 9
    run.require_no_process()


def test_ctrl_c_ends_the_nodes(run_pytest):
    run = run_pytest(with_processes(WAITS), "-s")
    run.read_until("waits")
    run.signal(signal.SIGINT)
    assert run.wait() == pytest.ExitCode.INTERRUPTED
    run.require_no_process()


def test_a_kill_ends_the_nodes(run_pytest):
    run = run_pytest(with_processes(WAITS), "-s")
    run.read_until("waits")
    run.signal(signal.SIGKILL)
    run.wait()
    run.require_no_process()


def test_a_kill_ends_a_frozen_node(run_pytest):
    text = """
        import threading
        from processes import name

        def test_that_waits(tailrace_node):
            name(tailrace_node)
            with tailrace_node.freeze():
                print("waits", flush=True)
                threading.Event().wait()
    """
    run = run_pytest(with_processes(text), "-s")
    run.read_until("waits")
    run.signal(signal.SIGKILL)
    run.wait()
    run.require_no_process()


def test_a_failure_shows_the_log_of_the_node(run_pytest):
    text = """
        from processes import name

        def test_that_fails(tailrace_make_node):
            node = tailrace_make_node()
            name(node)
            node.start()

        def test_that_fails_with_a_set(tailrace_set):
            name(*tailrace_set.nodes)
            assert False
    """
    run = run_pytest(with_processes(text))
    assert run.wait() == pytest.ExitCode.TESTS_FAILED
    assert "node runs already" in run.out
    assert "log of tailrace_set" in run.out
    assert "a set of 3 members is founded" in run.out
    run.require_no_process()


def test_a_node_that_died_by_itself_fails_its_test(run_pytest):
    text = """
        import os, signal

        def test_that_kills(tailrace_node):
            os.kill(tailrace_node.pid, signal.SIGKILL)
    """
    run = run_pytest({"test_user.py": text})
    assert run.wait() == pytest.ExitCode.TESTS_FAILED
    assert "node has ended with -9, not 0" in run.out


def test_a_run_without_nodes_loads_nothing(run_pytest):
    text = """
        import sys

        def test_what_is_loaded(request):
            assert "tailrace_pytest" in sys.modules
            found = {name.split(".")[0] for name in sys.modules}
            assert not found & {"tailrace", "tailrace_server", "trio", "numpy"}
    """
    assert run_pytest({"test_user.py": text}, "-p", "no:trio", "-p", "no:asyncio", "-p", "no:anyio").passed() == 1


def test_the_next_run_begins_to_load_the_server_before_it_collects_tests(run_pytest):
    text = """
        import sys

        was_loaded = "tailrace.testing" in sys.modules

        def test_a_node(tailrace_node):
            print(f"{was_loaded=}")
    """
    for expected in (False, True):
        run = run_pytest({"test_user.py": text}, "-s")
        run.passed()
        assert f"was_loaded={expected}" in run.out


def test_a_missing_library_of_the_server_is_reported(run_pytest, tmp_path):
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "pydantic_settings.py").write_text("raise ModuleNotFoundError('No pydantic_settings')\n")
    text = "def test_a_node(tailrace_node):\n    pass\n"
    run = run_pytest({"test_user.py": text}, PYTHONPATH=str(tmp_path / "library"))
    assert run.wait() == pytest.ExitCode.TESTS_FAILED
    assert "cannot be started" in run.out
    assert "pip install 'tailrace[testing]'" in run.out


def test_the_module_of_the_plugin_imports_nothing_of_tailrace():
    code = "import sys, pytest; before = {*sys.modules}; import tailrace_pytest; print(*{*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.split() == ["tailrace_pytest"]
