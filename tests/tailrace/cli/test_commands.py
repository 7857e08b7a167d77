"""Which commands there are, that a broken one breaks no other, and how errors and exit codes come about."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer

import tailrace_command
from tailrace import Retryable, Unreachable, __version__
from tailrace.cli import main
from tailrace.cli.commands import GROUP, installed_commands, invoke, make_app
from tailrace.cli.errors import CommandFailed, WrongUsage, alone, explain


def entry(name, value):
    return EntryPoint(name, value, GROUP)


@pytest.fixture
def app(monkeypatch):
    """An application of these entry points; the functions are attributes of this module."""

    def make(**values):
        commands = {name: entry(name, value) for name, value in values.items()}
        return make_app(commands)

    return make


@pytest.fixture
def commands_module(monkeypatch):
    """A module whose attributes entry points can name."""
    module = type(sys)("some_commands")
    monkeypatch.setitem(sys.modules, "some_commands", module)
    return module


def test_the_commands_that_there_are():
    offline = {"backup", "repair", "restore", "verify"}
    assert set(installed_commands()) == offline | {
        "audit",
        "bench",
        "completion",
        "config",
        "delete",
        "demo",
        "explain-resume",
        "export",
        "feed",
        "fetch",
        "get",
        "group",
        "handover",
        "import",
        "member",
        "promote",
        "put",
        "serve",
        "status",
        "tail",
        "tls",
        "token",
    }


@pytest.mark.parametrize("name", sorted(installed_commands()))
def test_each_command_can_be_loaded_and_explains_itself(name, call):
    done = call(name, "--help")
    assert done.code == 0
    assert b"Usage: tailrace " + name.encode() in done.out


def test_help_lists_every_command(call):
    done = call("--help")
    assert done.code == 0
    assert all(f"  {name} ".encode() in done.out for name in installed_commands())
    assert b"Not available" not in done.out


def test_without_a_command_the_help_goes_to_stderr(call):
    done = call()
    assert (done.code, done.out) == (2, b"")
    assert "Commands:" in done.err


def test_version(call):
    assert call("--version")[:2] == (0, f"tailrace {__version__}\n".encode())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["feed"], "Missing command; see `tailrace feed --help`"),
        (["put", "feed"], "Missing argument 'KEY'; see `tailrace put --help`"),
        (["get", "feed", "key", "--colour"], "No such option: --colour"),
        (["get", "feed", "key", "--node", "host:port"], "--node: 'host:port' is no address"),
        (["get", "feed", "key", "--url", "http://host"], "--url: 'http://host' is no URL of a node"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(call, arguments, says):
    done = call(*arguments)
    assert (done.code, done.out) == (2, b"")
    [line] = done.err.splitlines()
    assert line.startswith("tailrace: ")
    assert says in line


def test_functions_and_groups_become_commands(app, commands_module, capsys):
    group = typer.Typer()
    group.command("inner")(lambda: print("in the group"))
    group.command("other")(lambda: None)
    commands_module.group = group
    commands_module.plain = lambda: print("plain")
    made = app(one="some_commands:plain", two="some_commands:group")
    assert invoke(made, ["one"]) == 0
    assert invoke(made, ["two", "inner"]) == 0
    assert capsys.readouterr().out == "plain\nin the group\n"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("no_such_module:command", "No module named 'no_such_module'"),
        ("some_commands:missing", "has no attribute 'missing'"),
        ("no_such_module:command [server]", "pip install 'tailrace[server]'"),
    ],
)
def test_a_command_that_cannot_be_loaded_breaks_no_other(app, commands_module, capsys, value, why):
    commands_module.fine = lambda: print("fine")
    made = app(broken=value, fine="some_commands:fine")
    assert invoke(made, ["fine"]) == 0
    assert invoke(made, ["broken", "--any", "thing"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "fine\n"
    assert captured.err.startswith("tailrace: the command 'broken' cannot be loaded (")
    assert why in captured.err
    assert captured.err.count("\n") == 1
    assert invoke(made, ["--help"]) == 0
    assert "Not available here" in capsys.readouterr().out


def test_a_module_that_fails_while_it_is_loaded_is_broken_too(app, tmp_path, monkeypatch, capsys):
    (tmp_path / "exploding_commands.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert invoke(app(bad="exploding_commands:command"), ["bad"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (CommandFailed("it is broken"), 1, "it is broken"),
        (WrongUsage("not like that"), 2, "not like that"),
        (Retryable("later"), 1, "later"),
        (
            Unreachable("refused"),
            1,
            "refused; nothing was changed; --url, --node or TAILRACE_URL name the nodes to ask",
        ),
        (
            Unreachable("silent", outcome="unknown"),
            1,
            "silent; the request may have been executed: check before you repeat it",
        ),
        (FileNotFoundError(2, "No such file or directory", "x.txt"), 1, "x.txt: No such file or directory"),
        (ExceptionGroup("of a nursery", [ExceptionGroup("of another", [Retryable("inner")])]), 1, "inner"),
    ],
)
def test_what_is_raised_becomes_a_line_and_an_exit_code(app, commands_module, capsys, error, code, says):
    def command():
        raise error

    commands_module.command = command
    assert invoke(app(command="some_commands:command"), ["command"]) == code
    assert capsys.readouterr().err == f"tailrace: {says}\n"


def test_notes_are_told():
    error = Retryable("no")
    error.add_note("but partition 3 took its share")
    assert explain(error) == "no; but partition 3 took its share"


def test_ctrl_c_has_no_traceback(app, commands_module, capsys):
    def command():
        raise KeyboardInterrupt

    def in_a_nursery():
        raise BaseExceptionGroup("of a nursery", [KeyboardInterrupt()])

    commands_module.command, commands_module.in_a_nursery = command, in_a_nursery
    made = app(one="some_commands:command", two="some_commands:in_a_nursery")
    assert invoke(made, ["one"]) == 130
    assert invoke(made, ["two"]) == 130
    assert capsys.readouterr().err == ""


def test_ctrl_c_while_a_command_is_imported_has_no_traceback(monkeypatch):
    def load(entry):
        raise KeyboardInterrupt

    monkeypatch.setattr(EntryPoint, "load", load)
    monkeypatch.setattr(sys, "argv", ["tailrace", "put"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


def test_a_bug_keeps_its_traceback(app, commands_module):
    def command():
        raise LookupError("a bug")

    commands_module.command = command
    with pytest.raises(LookupError, match="a bug"):
        invoke(app(command="some_commands:command"), ["command"])


def test_alone_finds_the_first_cause():
    inner = ValueError("x")
    assert alone(ExceptionGroup("a", [ExceptionGroup("b", [inner]), KeyError()])) is inner
    assert alone(inner) is inner


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_importing_the_sdk_loads_no_command_line_library():
    done = python(
        "import sys, tailrace, tailrace.cli; print([n for n in ('typer', 'rich', 'click') if n in sys.modules])"
    )
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_without_the_extra_the_command_says_how_to_get_it():
    done = python(
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name in ('typer', 'rich') else find(name)\n"
        "from tailrace.cli import main\n"
        "sys.argv = ['tailrace', 'status']\n"
        "main()\n"
    )
    assert done.returncode == 1
    assert done.stderr == "tailrace: the command line needs typer and rich: pip install 'tailrace[cli]'\n"


@pytest.mark.slow
def test_ctrl_c_while_the_package_is_imported_has_no_traceback():
    done = python(
        "import sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'trio':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from tailrace_command import main\n"
        "main()\n"
    )
    assert (done.returncode, done.stderr) == (130, "")


def test_the_script_ends_as_the_command_does(monkeypatch, capsys):
    searches = []
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    for name in ("disable", "freeze", "enable"):
        monkeypatch.setattr(gc, name, partial(searches.append, name))
    monkeypatch.setattr(sys, "argv", ["tailrace", "--version"])
    with pytest.raises(SystemExit) as ended:
        tailrace_command.main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("tailrace ")
    assert searches == ["disable", "freeze", "enable"], "what is imported is left out, and then searches go on"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3", "the user's number stays"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists the threads of a process")
def test_a_command_has_one_thread_with_numpy_too(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    done = python(
        "import os, sys, tailrace_command\n"
        "sys.argv = ['tailrace', '--version']\n"
        "try:\n"
        "    tailrace_command.main()\n"
        "except SystemExit:\n"
        "    import numpy\n"
        "    print(len(os.listdir('/proc/self/task')))\n"
    )
    assert done.stdout.endswith("\n1\n")


@pytest.mark.slow
def test_a_command_loads_no_other_package():
    done = python(
        "import sys\n"
        "from tailrace.cli.commands import run\n"
        "run(['put', '--help'])\n"
        "print([n for n in ('tailrace_server', 'pyspark_tailrace') if n in sys.modules])\n"
    )
    assert done.stdout.endswith("[]\n")


@pytest.mark.slow
def test_the_entry_point_of_the_script(call, start):
    with start("--version") as process:
        assert process.communicate(timeout=120)[0] == f"tailrace {__version__}\n".encode()
        assert process.returncode == 0


@pytest.mark.slow
def test_a_reader_that_leaves_causes_no_traceback(start, made_feed):
    with start("feed", "list", "--json") as process:
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(120) in (0, 1)
    assert b"Traceback" not in errors
    assert b"Exception" not in errors
