"""Whatever is lost at any moment: all that was synced is there, and nothing but a beginning of what was written."""

from __future__ import annotations

import contextlib
import os
import random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace.block import encode_block
from tailrace.errors import NoSpace
from tailrace_server.journal import JournalDamaged, JournalFailed, RecordKind, open_journal, recovery
from tailrace_server.journal.format import FILE_HEADER_BYTES, FileHeader

FEED = b"F" * 16
BRANCH = b"B" * 16
FILE_BYTES_MAX = 1_000

WRITES = ["small", "block", "long", "long", "sync", "sync", "trim"]
FAULTS = ["fill", "bad sync", "kill", "cut", "cut in recovery", "crash while writing"]
STEPS = st.lists(st.sampled_from(WRITES * 2 + FAULTS), max_size=40)


@pytest.fixture(scope="module", autouse=True)
def small_bounds():
    """So that a few records are enough to rotate, to allocate, and to make a file that is too large to be replaced."""
    with (
        mock.patch("tailrace_server.journal.recovery.REPLACE_BYTES_MAX", 400),
        mock.patch("tailrace_server.journal.writer.ALLOCATE_BYTES", 300),
    ):
        yield


class Life:
    """A journal through crashes, beside the list of what it has to hold.

    Of that, the first ``trimmable`` may be gone: files that held nothing else were to be removed.
    """

    def __init__(self, disk, rnd):
        self.disk = disk
        self.rnd = rnd
        self.written = []  # payloads and blocks in order
        self.lsns = []  # what append gave for them
        self.durable = 0  # how many of them a sync has covered
        self.trimmable = 0
        self.counter = 0
        self.open()

    def open(self):
        self.journal, recovered = open_journal(self.disk, "/journal", file_bytes_max=FILE_BYTES_MAX)
        found, trimmed = self.found(recovered)
        assert len(found) >= self.durable - trimmed
        self.written, self.durable = found, len(found)
        self.trimmable -= trimmed
        self.lsns = [record.lsn for record in recovered.records]
        assert self.journal.synced == self.journal.written

    def found(self, recovered):
        """The records that are there, and how many of ``written`` are gone that stood in front of them."""
        found = [record.block or record.payload for record in recovered.records]
        trimmed = self.written.index(found[0]) if found else min(self.trimmable, len(self.written))
        assert trimmed <= self.trimmable
        assert found == self.written[trimmed : trimmed + len(found)]
        return found, trimmed

    def trim(self):
        """All files below some file."""
        before = self.rnd.randint(self.journal.oldest_number, self.journal.end[0])
        self.trimmable = max(self.trimmable, sum(self.journal.file_of(lsn) < before for lsn in self.lsns))
        with contextlib.suppress(OSError, JournalFailed):
            self.journal.trim(before)

    def append(self, what):
        self.counter += 1
        try:
            if what == "block":
                made = encode_block([b"%d" % self.counter], [b"v" * 50], partition=1).stamped(self.counter, 1)
                lsn = self.journal.append_block(FEED, 1, BRANCH, made)
            else:
                made = b"%d " % self.counter * (1 if what == "small" else 100)
                lsn = self.journal.append(RecordKind.FLUSHED, FEED, 1, made)
        except (NoSpace, JournalFailed):
            return
        self.written.append(made)
        self.lsns.append(lsn)

    def sync(self):
        count = len(self.written)
        try:
            self.journal.sync()
        except JournalFailed:
            return
        self.durable = count

    def step(self, what):
        if what in ("small", "block", "long"):
            self.append(what)
        elif what == "sync":
            self.sync()
        elif what == "trim":
            self.trim()
        elif what == "fill":
            self.fill()
        elif what == "bad sync":
            self.fail_a_sync()
        else:
            self.crash(what)

    def fill(self):
        """The disk is full for some writes, one of which is cut somewhere."""
        size = self.disk.size_bytes
        self.disk.size_bytes -= self.disk.free - self.rnd.randint(0, 300)
        for _ in range(3):
            self.append("long")
        self.disk.size_bytes = size

    def fail_a_sync(self):
        self.disk.fail("sync")
        self.sync()
        self.disk.before = None

    def crash(self, what):
        if what == "crash while writing":
            self.crash_while_writing()
        self.crash_once(what)
        if what == "cut in recovery":
            self.crash_in_recovery()
        self.open()

    def crash_once(self, what):
        if what == "kill":
            self.disk.kill()
        else:
            self.disk.cut_power(self.rnd)

    def crash_after(self, changes):
        """Stop the machine after this many calls that change something."""
        last = self.disk.changes + changes

        def before(name, path):
            if name != "read_at" and self.disk.changes == last:
                raise self.disk.Crashed

        self.disk.before = before

    def crash_while_writing(self):
        self.crash_after(self.rnd.randint(0, 20))
        with contextlib.suppress(self.disk.Crashed):
            for step in self.rnd.choices(WRITES, k=10):
                self.step(step)

    def crash_in_recovery(self):
        """At one of its first calls, once or more often, by a kill or by a power cut."""
        for _ in range(self.rnd.randint(1, 3)):
            self.crash_after(self.rnd.randint(0, 12))
            with contextlib.suppress(self.disk.Crashed):
                open_journal(self.disk, "/journal", file_bytes_max=FILE_BYTES_MAX)
            self.crash_once(self.rnd.choice(["kill", "cut"]))


@settings(max_examples=examples(400), deadline=None)
@given(steps=STEPS, rnd=st.randoms(use_true_random=False))
def test_no_synced_record_is_ever_lost(memory_disk, steps, rnd):
    life = Life(memory_disk(), rnd)
    for step in [*steps, "cut"]:
        life.step(step)


@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS, rnd=st.randoms(use_true_random=False), cut=st.booleans())
def test_recovery_crashed_at_each_of_its_calls(memory_disk, steps, rnd, cut):
    seed = rnd.random()
    calls = 1
    number = 0
    while number < calls:
        rnd.seed(seed)
        life = Life(memory_disk(), rnd)
        for step in steps:
            life.step(step)
        life.disk.kill()
        life.crash_after(number)
        with pytest.raises(life.disk.Crashed):
            open_journal(life.disk, "/journal", file_bytes_max=FILE_BYTES_MAX)
        life.crash_once("cut" if cut else "kill")
        if number == 0:
            calls = recovery_calls(memory_disk, steps, rnd, seed)
        life.open()
        number += 1


def recovery_calls(memory_disk, steps, rnd, seed):
    """How many calls that change something this recovery takes, where nothing stops it."""
    rnd.seed(seed)
    life = Life(memory_disk(), rnd)
    for step in steps:
        life.step(step)
    life.disk.kill()
    begin = life.disk.changes
    life.open()
    return life.disk.changes - begin


@settings(max_examples=examples(400), deadline=None)
@given(steps=STEPS.filter(lambda steps: len(steps) > 3), rnd=st.randoms(use_true_random=False))
def test_damage_below_synced_stops_with_file_and_offset(memory_disk, steps, rnd):
    """One bit, anywhere: what was known durable is never cut, and never given back changed."""
    life = Life(memory_disk(), rnd)
    for step in steps:
        life.step(step)
    written, durable = life.written, life.durable
    life.append("small")  # after the last sync: it says what was durable before it
    if life.journal.failed is None:
        written = life.written
    life.disk.kill()
    name = rnd.choice([name for name in life.disk.names("/journal") if name.endswith(".log")])
    content = life.disk.content("/journal/" + name)
    number, synced = life.journal.synced >> 32, life.journal.synced & 0xFFFFFFFF
    known = len(content) if int(name[:8]) < number else synced
    place = rnd.randrange(known if rnd.random() < 0.7 else len(content))
    content[place] ^= 1 << rnd.randrange(8)
    damage = None
    try:
        _, recovered = open_journal(life.disk, "/journal", file_bytes_max=FILE_BYTES_MAX)
    except JournalDamaged as error:
        damage = error
    if damage is not None:
        assert damage.file == "/journal/" + name
        assert damage.offset <= place
        assert f"{damage.file} at offset {damage.offset}" in str(damage)
        return
    assert place >= known
    life.written = written
    found, trimmed = life.found(recovered)
    assert len(found) >= durable - trimmed


def live(disk, seed):
    """One random life; AssertionError or JournalDamaged where a synced record is lost."""
    rnd = random.Random(seed)
    life = Life(disk, rnd)
    for step in rnd.choices(WRITES * 2 + FAULTS, k=30):
        life.step(step)
    life.step("cut")


def no_sync_at_birth(disk, path, file):
    disk.rename(path + ".new", path)
    disk.sync_directory(os.path.dirname(path))
    file.sync()


def no_sync_of_the_name(disk, path, file):
    file.sync()
    disk.rename(path + ".new", path)


def no_sync(journal):
    journal.synced = journal.written


def gone_on_with_in_place(disk, directory, newest, key, begin_file=recovery._continue):
    """As if a second fsync could make up for one that failed."""
    if newest is None:
        return begin_file(disk, directory, newest, key)
    file = disk.open(newest.path, writable=True)
    file.truncate(newest.facts.end)
    file.sync()
    return recovery.Extent(newest.path, newest.header, newest.facts.end), file, recovery.Copied()


@pytest.mark.slow
@pytest.mark.planted
@pytest.mark.parametrize(
    ("place", "bug"),
    [
        ("writer.publish_file", no_sync_at_birth),
        ("recovery.publish_file", no_sync_at_birth),
        ("writer.publish_file", no_sync_of_the_name),
        ("recovery.publish_file", no_sync_of_the_name),
        ("writer.Journal._finish", no_sync),
        ("writer.Journal.sync", no_sync),
        ("recovery._continue", gone_on_with_in_place),
    ],
)
def test_a_planted_bug_is_found(memory_disk, place, bug):
    def lives():
        for seed in range(300):
            live(memory_disk(), seed)

    lives()
    with mock.patch(f"tailrace_server.journal.{place}", bug), pytest.raises((AssertionError, JournalDamaged)):
        lives()


def test_the_header_of_a_file_says_what_was_durable_at_its_birth(memory_disk):
    disk = memory_disk()
    journal, _ = open_journal(disk, "/journal")
    journal.append(RecordKind.FLUSHED, FEED, 0, b"x" * 8)
    disk.kill()
    open_journal(disk, "/journal")
    header = FileHeader.unpack(bytes(disk.content("/journal/00000001.log")[:FILE_HEADER_BYTES]))
    assert header.synced == FILE_HEADER_BYTES + 96 + 8
