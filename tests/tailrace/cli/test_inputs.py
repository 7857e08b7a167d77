"""Input without an end: every command that reads any stops at what it could use, and says so."""

from __future__ import annotations

import contextlib
import os
import resource

import pytest
import typer.main

from tailrace.cli.commands import installed_commands, make_app

# What a command that does not stop may take before this test sees it fail: far above what an answer needs.
ADDRESS_SPACE_BYTES_MAX = 2 << 30
# Above the largest bound (16 MiB) with what a pipe and a buffer have on top.
TAKEN_BYTES_MAX = 24 << 20
ENDLESS = "@/dev/zero"

# (command, the parameter that names what is read) and how it is called.
CALLS = {
    ("explain-resume", "positions"): ["explain-resume", "FEED", ENDLESS],
    ("group reset", "to"): ["group", "reset", "FEED", "workers", "--to", ENDLESS],
    ("tail", "since"): ["tail", "FEED", "--since", ENDLESS],
    ("tail", "until"): ["tail", "FEED", "--until", ENDLESS],
}
PIPED = {
    ("explain-resume", "positions"): ["explain-resume", "FEED", "-"],
    ("group reset", "to"): ["group", "reset", "FEED", "workers", "--to", "-"],
    ("put", "value"): ["put", "FEED", "k", "-"],
}


# A file of rows may be of any length, and each of its lines has a bound.
OF_LINES = {("import", "file"): ["import", "FEED", "/dev/zero", "--format", "jsonl"]}


def reading_parameters():
    """Every parameter of every command whose help says that a file or the standard input is read."""
    root = typer.main.get_command(make_app(installed_commands()))
    commands = [*root.commands.items()]
    for name, command in commands:
        commands += [(f"{name} {inner}", found) for inner, found in getattr(command, "commands", {}).items()]
        for parameter in command.params:
            text = getattr(parameter, "help", None) or ""
            if "@FILE" in text or "standard input" in text:
                yield name, parameter.name


def test_every_command_that_reads_is_tried_here():
    assert set(reading_parameters()) == CALLS.keys() | PIPED.keys() | OF_LINES.keys()


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES_MAX, ADDRESS_SPACE_BYTES_MAX))


@pytest.mark.parametrize("arguments", CALLS.values(), ids=" ".join)
def test_a_file_without_an_end(start, made_feed, arguments):
    with start(*[made_feed if part == "FEED" else part for part in arguments], preexec_fn=limit_memory) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, b""), err
    assert b"/dev/zero has more than the " in err
    assert err.count(b"\n") == 1


@pytest.mark.parametrize("arguments", OF_LINES.values(), ids=" ".join)
def test_a_line_without_an_end(start, made_feed, arguments):
    with start(*[made_feed if part == "FEED" else part for part in arguments], preexec_fn=limit_memory) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, b""), err
    assert err.endswith(b"tailrace: /dev/zero, line 1: longer than 134,217,728 bytes\n")


@pytest.mark.parametrize("arguments", PIPED.values(), ids=" ".join)
def test_a_standard_input_without_an_end(start, made_feed, arguments):
    taken = 0
    with start(*[made_feed if part == "FEED" else part for part in arguments], preexec_fn=limit_memory) as process:
        with process.stdin as pipe, contextlib.suppress(BrokenPipeError):
            while taken < 2 * TAKEN_BYTES_MAX:
                taken += os.write(pipe.fileno(), b"x" * 65_536)
        process.stdin = None  # communicate() would flush it
        out, err = process.communicate(timeout=120)
    assert taken < TAKEN_BYTES_MAX
    assert (process.returncode, out) != (0, b""), err
    assert b"the standard input has more than the " in err
    assert err.count(b"\n") == 1
