"""The programs of docs/examples, as their page shows them, and with more rows, checked by readers other than Spark.

Here they run in the Spark of the tests. tests/docs/test_pages.py runs the page as a reader does, after all others.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import re
import shlex
import sqlite3
import subprocess
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tailrace import blocking
from tailrace.cli.commands import run as run_command

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
PAGE = (EXAMPLES / "README.md").read_text()
# What the page's programs take for folders. Spark's Java would look for them where it was started itself.
FOLDERS = {"news", "shop-parquet"}


def load(name):
    """A program of the examples, as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def example(spark, tmp_path, shared_node, monkeypatch):
    """Runs a program in this process and its Spark: ``example(name, *arguments)``, with a checkpoint for each name."""
    monkeypatch.chdir(tmp_path)

    def run(name, *arguments, url=shared_node.url):
        program = load(name)
        fixed = ["--url", url, "--checkpoint", str(tmp_path / f"checkpoint-{name}")]
        program.run(spark, program.parse([*arguments, *fixed]))

    return run


# The page


def dialogue(heading):
    """The commands of a section of the page, each with what it prints."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line.removeprefix("    ") for line in section.splitlines() if line.startswith("    ")]
    commands = "\n".join(lines).split("$ ")[1:]
    return [tuple(command.partition("\n")[::2]) for command in commands]


@pytest.fixture
def perform(example, node_process, monkeypatch, capsysbinary, tmp_path):
    """Does what a command of the page says, with a node whose feeds have the page's names; gives what it prints."""
    monkeypatch.setenv("TAILRACE_URL", node_process.url)

    def perform(command):
        capsysbinary.readouterr()
        words = shlex.split(command)
        if words[0] == "tailrace":
            assert run_command(words[1:]) == 0
        elif words[0] == "python":
            assert Path(words[1]).parent == EXAMPLES.relative_to(ROOT)
            arguments = [str(tmp_path / word) if word in FOLDERS else word for word in words[2:]]
            example(Path(words[1]).stem, *arguments, url=node_process.url)
        else:
            subprocess.run(command, shell=True, check=True)
        return capsysbinary.readouterr().out.decode()

    return perform


@pytest.mark.soak  # the programs themselves are tried below, with more rows
@pytest.mark.parametrize("heading", ["JSON files to a search index", "Orders and payments"])
def test_the_page_shows_what_is_printed(perform, heading):
    commands = dialogue(heading)
    assert len(commands) > 5
    assert [(command, perform(command).strip()) for command, _ in commands] == [
        (command, printed.strip()) for command, printed in commands
    ]


def test_every_program_is_on_the_page():
    programs = {path.name for path in EXAMPLES.glob("*.py")}
    assert set(re.findall(r"\]\((\w+\.py)\)", PAGE)) == programs
    assert set(re.findall(r"python docs/examples/(\w+\.py)", PAGE)) == programs


# With more rows


@pytest.fixture
def feed(shared_node):
    """Makes a feed that keeps its history, for a test to write to."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(blocking.connect(shared_node.url))
        yield lambda name: client.create_feed(name, partitions=4, retention="history")


def put_all(feed, rows):
    with feed.writer() as writer:
        for key, value in rows.items():
            writer.delete(key) if value is None else writer.put(key, json.dumps(value).encode())


def decoded(found):
    return {key.decode(): json.loads(value) for key, value in found.items()}


def test_search_index(example, shared_node, feed_name, contents, tmp_path):
    """Files hold changes in any order; those of a later run are later, as files that appear are."""
    rnd = random.Random(4700)
    names = [f"a-{number}" for number in range(200)]
    wanted, times = {}, defaultdict(int)
    (tmp_path / "in").mkdir()
    for run in range(2):
        changes = []
        for second in range(1000):
            name = rnd.choice(names)
            gone = rnd.random() < 0.2
            text = f"text {second} of run {run} with the word {rnd.choice(('heron', 'otter', 'pike'))}"
            changed = f"2026-01-0{run + 1}T10:{second // 60:02}:{second % 60:02}Z"
            changes.append({"id": name, "title": name.upper(), "text": text, "changed": changed, "gone": gone})
            wanted[name] = None if gone else text
            times[name] += 1
        rnd.shuffle(changes)
        for part in range(3):
            lines = (json.dumps(change) + "\n" for change in changes[part::3])
            (tmp_path / "in" / f"{run}-{part}.json").write_text("".join(lines))
        example("json_to_search", str(tmp_path / "in"), "otter", "--feed", feed_name, "--index", "found.db")
        present = {name: text for name, text in wanted.items() if text is not None}
        found = contents(shared_node.url, feed_name)
        assert {key.decode(): len(values) for key, values in found.history().items()} == times
        assert {name: row["text"] for name, row in decoded(found.state()).items()} == present
        with contextlib.closing(sqlite3.connect(tmp_path / "found.db")) as database:
            assert dict(database.execute("SELECT CAST(key AS TEXT), text FROM items")) == present
            matching = database.execute("SELECT title FROM items_fts WHERE items_fts MATCH 'otter'").fetchall()
            assert {title for (title,) in matching} == {n.upper() for n, text in present.items() if "otter" in text}


@pytest.mark.long
def test_parquet(example, feed, shared_node, feed_name, contents, tmp_path, capsys):
    rnd = random.Random(4700)
    orders = feed(feed_name)
    files = {}
    for run in range(2):
        for _ in range(3):
            put_all(orders, {b"%d" % rnd.randrange(500): rnd.choice((None, {"run": run})) for _ in range(200)})
        capsys.readouterr()
        example("feed_to_parquet", feed_name, str(tmp_path / "out"))
        held = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")}
        assert held.items() > files.items(), "files are added, and those that are there stay as they are"
        files = held
        wanted = contents(shared_node.url, feed_name)
        rows = [row for path in files for row in pq.read_table(path).to_pylist()]
        assert sorted((row["partition"], row["seq"], row["key"], row["value"]) for row in rows) == sorted(wanted.rows)
        said, *shown = capsys.readouterr().out.splitlines()
        assert said == f"{len(wanted.rows)} mutations, {len(wanted.state())} keys"
        first = sorted(wanted.state().items())[:20]
        assert shown == [f"{key.decode()}  {value.decode()}" for key, value in first]


def minute(number):
    return f"2026-01-05T{number // 60:02}:{number % 60:02}:00Z"


@pytest.mark.long
def test_join(example, feed, shared_node, feed_name, contents):
    """Orders of 13 hours, in two runs; the payments of some come with the second one."""
    rnd = random.Random(4700)
    orders, payments = feed(f"{feed_name}-orders"), feed(f"{feed_name}-payments")
    wanted, waiting = {}, {}
    for run in range(2):
        start = run * 400
        made = {}
        paid = {}
        for number in range(start, start + 400, 2):
            order = f"o-{number}"
            made[order.encode()] = {"customer": "ada", "amount": number, "at": minute(number)}
            wanted[order] = {"customer": "ada", "amount": number, "at": minute(number)}
            after = rnd.randrange(120)
            if after < 90:
                paid[b"p-%d" % number] = {"order": order, "at": minute(number + after)}
            if after <= 60:
                wanted[order]["paid_at"] = minute(number + after)
        # A payment after the end of this run's time comes with the next run.
        late = {key: payment for key, payment in paid.items() if payment["at"] >= minute(start + 400)}
        put_all(orders, made)
        put_all(payments, waiting | {key: payment for key, payment in paid.items() if key not in late})
        waiting = late
        example("join_feeds", orders.name, payments.name, f"{feed_name}-settled")
    found = contents(shared_node.url, f"{feed_name}-settled")
    assert all(len(values) == 1 for values in found.history().values())
    state = decoded(found.state())
    assert state == {order: wanted[order] for order in state}
    # The watermark is ten minutes behind the last order or payment, and another hour back all is settled.
    settled = {order for order in wanted if int(order[2:]) < 800 - 10 - 60 - 10}
    open_yet = {order for order in wanted if int(order[2:]) >= 800 - 10 - 60}
    assert state.keys() >= settled
    assert not all("paid_at" in state[order] for order in settled)
    assert all("paid_at" in state[order] for order in state.keys() & open_yet)


@pytest.mark.long
def test_totals(example, feed, shared_node, feed_name, contents):
    rnd = random.Random(4700)
    orders = feed(f"{feed_name}-orders")
    wanted = {city: {"orders": 0, "amount": 0} for city in ("Oslo", "Rome", "Graz", "Bern")}
    written = defaultdict(list)
    for run, cities in enumerate((("Oslo", "Rome", "Graz"), ("Rome", "Bern"))):
        rows = {}
        for number in range(300):
            city, amount = rnd.choice(cities), rnd.randrange(100)
            rows[b"%d-%d" % (run, number)] = {"city": city, "amount": amount}
            wanted[city]["orders"] += 1
            wanted[city]["amount"] += amount
        rows[b"none-%d" % run] = {"amount": 5}
        rows[b"gone-%d" % run] = None
        put_all(orders, rows)
        for city in cities:
            written[city].append(dict(wanted[city]))
        example("totals_by_city", orders.name, f"{feed_name}-totals")
    history = contents(shared_node.url, f"{feed_name}-totals").history()
    # Only those rows are written whose sums have changed.
    assert {key.decode(): [json.loads(value) for value in values] for key, values in history.items()} == written
