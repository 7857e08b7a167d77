"""Every option of the public API that is a number refuses what is none, by name, before anything is done.

The options are found by inspection, so one that is added later is tested too.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from decimal import Decimal

import pyarrow
import pytest
import trio

import tailrace
from tailrace import blocking
from tailrace.consuming.subscription import Subscription
from tailrace.indexes import MemoryIndex
from tailrace.model import Level, Version
from tailrace.model.arguments import count, seconds
from tailrace.model.position import Positions

# What a program calls, of each kind of client. Their other classes are made by these.
HANDLES = ("connect", "Client", "Feed", "Writer", "Stage", "Stream", "Follower")
# Calls between the parts of the SDK: their numbers come from the options that are tested here, or from the node.
INTERNAL = {
    "Client": {"call", "deadline", "get", "of_leader", "queue", "queue_write", "run_until", "write", "write_all"},
    "Feed": {"resolve"},
    "Stage": {"send"},
    "Stream": {"failover_log", "ring", "ring_change", "ring_floor", "settle"},
}
NUMBER = re.compile(r"\b(int|float)\b")
CALLABLE = re.compile(r"Callable\[\[[^]]*\], \w+\]")  # its numbers are not those of the caller
# What the calls need beside the option that is tested.
REQUIRED = {
    "url",
    "data",
    "name",
    "key",
    "value",
    "changes",
    "keys",
    "sink",
    "batch",
    "stages",
    "index",
    "subscription",
    "directory",
    "replication",
    "role",
    "positions",
    "version",
}
WRONG = [math.nan, math.inf, -math.inf, -1, -0.5, True, False]
# Options for which infinity means that there is no bound.
WITHOUT_BOUND = {("set_feed", name) for name in ("history_age_s", "history_bytes", "ttl_s")}


def wrong_values(name, option):
    return [value for value in WRONG if value != math.inf or (name, option.name) not in WITHOUT_BOUND]


def number_options(module):
    """Yields (class or None, function, option) for every option of the module that is a number."""
    for handle in HANDLES:
        thing = getattr(module, handle, None)
        if inspect.isfunction(thing):
            members = [(None, handle, thing)]
        else:
            members = [(handle, name, method) for name, method in inspect.getmembers(thing, inspect.isfunction)]
        for owner, name, function in members:
            if name.startswith("_") or name in INTERNAL.get(owner, ()):
                continue
            for parameter in inspect.signature(function).parameters.values():
                if NUMBER.search(CALLABLE.sub("", str(parameter.annotation))):
                    yield owner, name, parameter


def arguments_of(function, option, wrong, given):
    """The arguments of a call that is right but for ``option``."""
    chosen = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in (option.name, "self"):
            assert name in REQUIRED, f"{function} needs {name}: tell this test what to give it"
            chosen[name] = given[name]
    many = "Iterable" in str(option.annotation)
    return chosen | {option.name: [wrong] if many else wrong}


def message_of(option, value):
    return re.escape(f"{option.name} is {value!r}: ")


async def call(function, arguments):
    with trio.fail_after(30):
        done = function(**arguments)
        if inspect.isawaitable(done):
            await done


SUBSCRIPTION = Subscription("n", "beginning", None, None, Level.DISK, "follow")
GIVEN = {
    "name": "n",
    "data": pyarrow.table({"key": [b"k"], "value": [b"v"]}),
    "key": b"k",
    "directory": "never-made",
    "replication": "stream",
    "role": "read",
    "value": b"v",
    "changes": [],
    "keys": [b"k"],
    "sink": "s",
    "batch": 0,
    "stages": [],
    "subscription": SUBSCRIPTION,
    "index": MemoryIndex(),
    "positions": Positions(bytes(16), bytes(16)),
    "version": Version(0, bytes(16), 1),
}


def blocking_handles(stack, feed, client):
    return {
        "Client": client,
        "Feed": feed,
        "Writer": stack.enter_context(feed.writer()),
        "Stage": feed.stage(),
        "Stream": stack.enter_context(client.stream(SUBSCRIPTION._replace(feed=feed.name))),
        "Follower": stack.enter_context(feed.follow(MemoryIndex())),
    }


def try_blocking_options(url, feed_name):
    found = list(number_options(blocking))
    assert len(found) > 25
    given = GIVEN | {"url": url}
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(blocking.connect(url))
        handles = blocking_handles(stack, client.feed(feed_name), client)
        for owner, name, option in found:
            function = getattr(handles[owner], name) if owner else blocking.connect
            for value in wrong_values(name, option):
                arguments = arguments_of(function, option, value, given)
                with pytest.raises(ValueError, match=message_of(option, value)):
                    function(**arguments)


async def test_every_number_of_the_blocking_client(feed, running):
    await trio.to_thread.run_sync(try_blocking_options, running.url, feed.name, abandon_on_cancel=True)


async def test_every_number_of_the_client(client, feed, running):
    found = list(number_options(tailrace))
    assert len(found) > 12
    given = GIVEN | {"url": running.url}
    async with feed.writer() as writer, feed.stage() as stage, feed.consume() as stream:
        handles = {"Client": client, "Feed": feed, "Writer": writer, "Stage": stage, "Stream": stream}
        for owner, name, option in found:
            function = getattr(handles[owner], name) if owner else tailrace.connect
            for value in wrong_values(name, option):
                arguments = arguments_of(function, option, value, given)
                with pytest.raises(ValueError, match=message_of(option, value)):
                    await call(function, arguments)


@pytest.mark.parametrize("value", [0, 0.0, 1, 2.5, 10**9])
def test_seconds(value):
    assert seconds("timeout", value) == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, True, 10**400])
def test_seconds_that_are_none(value):
    with pytest.raises(ValueError, match=r"timeout is .*: a finite number of seconds is needed"):
        seconds("timeout", value)


def test_counts():
    assert [count("n", value) for value in (0, 1, 10**12)] == [0, 1, 10**12]
    assert count("n", 3, 1, 3) == 3
    for wrong in (0, 4, 1.0, 2.5, math.nan):
        with pytest.raises(ValueError, match=r"n is .*: an integer from 1 to 3 is needed"):
            count("n", wrong, 1, 3)


@pytest.mark.parametrize("check", [seconds, count])
@pytest.mark.parametrize("value", ["5", None, b"5", [5], 1j, Decimal(5)])
def test_what_is_no_number(check, value):
    with pytest.raises(TypeError, match=re.escape(f"retry_for is {value!r}: ")):
        check("retry_for", value)


@pytest.mark.parametrize("level", ["durable", "", None, 1])
def test_a_level_is_one_of_three_texts(level):
    with pytest.raises(ValueError, match="is none of 'memory', 'disk', 'quorum'"):
        Level.parse(level)
