"""Whatever is lost at any moment: all that was synced is there, and nothing but a beginning of what was written."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.memory_disk import KEEP, LOSE
from tests.tiers import examples

from tailrace.block import encode_block
from tailrace.errors import NoSpace
from tailrace_server.journal import JournalDamaged, JournalFailed, RecordKind, open_journal, recovery
from tailrace_server.journal.format import FILE_HEADER_BYTES, JournalHeader
from tailrace_server.journal.rotation import Rotation

FEED = b"F" * 16
BRANCH = b"B" * 16
FILE_BYTES_MAX = 1_000

WRITES = ["small", "block", "long", "long", "sync", "sync", "trim", "begin zeros", "zeros"]
FAULTS = ["fill", "bad sync", "bad zeros", "kill", "cut", "cut in recovery", "crash while writing"]
STEPS = st.lists(st.sampled_from(WRITES * 2 + FAULTS), max_size=40)


@pytest.fixture(scope="module", autouse=True)
def small_bounds():
    """So that a few records are enough to rotate, to allocate, and to make a file that is too large to be replaced."""
    with (
        mock.patch("tailrace_server.journal.recovery.REPLACE_BYTES_MAX", 400),
        mock.patch("tailrace_server.journal.space.ALLOCATE_BYTES", 300),
        mock.patch("tailrace_server.journal.space.GAP_BYTES", 100),
        mock.patch("tailrace_server.journal.space.PIECE_BYTES", 100),
        mock.patch("tailrace_server.journal.space._PAGE_BYTES", 64),
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

    def open(self, kept=0):
        """Opens the journal again; the first ``kept`` records, and those that a sync has covered, are there."""
        self.journal, recovered = open_journal(self.disk, "/journal", file_bytes_max=FILE_BYTES_MAX)
        found, trimmed = self.found(recovered)
        assert len(found) >= max(self.durable, kept) - trimmed
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
        elif what == "begin zeros":
            self.journal.begin_zeros()
        elif what == "zeros":
            self.zeros()
        elif what == "bad zeros":
            self.fail_zeros()
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

    def fail_zeros(self):
        """The disk refuses zeros, for which no record suffers that was synced before."""
        self.append("small")
        self.disk.fail(self.rnd.choice(["open", "allocate", "write_at", "sync"]))
        self.journal.begin_zeros()
        self.zeros()
        self.disk.before = None

    def zeros(self):
        free = self.disk.before is None
        if free and self.rnd.random() < 0.5:
            self.disk.before = self.write_during_sync
        with contextlib.suppress(JournalFailed):
            while self.journal.write_zeros() and self.journal.begin_zeros():
                pass
        if free:
            self.disk.before = None

    def write_during_sync(self, name, path):
        """While zeros are made durable, the loop's thread goes on."""
        if name == "sync":
            self.disk.before = None
            for what in self.rnd.choice([["small"], ["long", "sync", "begin zeros"], ["fill"], ["long", "small"]]):
                self.step(what)

    def crash(self, what):
        if what == "crash while writing":
            self.crash_while_writing()
        self.crash_once(what)
        if what == "cut in recovery":
            self.crash_in_recovery()
        self.open(len(self.written) if what == "kill" else 0)

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
    if int(name[:8]) < number:  # copies may follow behind its end
        successor = life.disk.content(f"/journal/{int(name[:8]) + 1:08}.log")
        known = JournalHeader.unpack(bytes(successor[:FILE_HEADER_BYTES])).previous_end
    else:
        known = synced
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


def begun_rotation(disk):
    """A journal with a file that is not durable, and a successor that has no name yet; the records of both."""
    journal, _ = open_journal(disk, "/journal", file_bytes_max=FILE_BYTES_MAX)
    made = [b"%200d" % number for number in range(5)]
    for payload in made[:2]:
        journal.append(RecordKind.FLUSHED, FEED, 1, payload)
    journal.sync()
    for payload in made[2:]:
        journal.append(RecordKind.FLUSHED, FEED, 1, payload)
    assert journal.end[0] == 2
    assert disk.names("/journal") == ["00000001.log", "next.log.new"]
    return journal, made


def recovered_payloads(disk):
    return [record.payload for record in open_journal(disk, "/journal", file_bytes_max=FILE_BYTES_MAX)[1].records]


def test_a_killed_process_loses_nothing_of_a_file_without_a_name(memory_disk):
    disk = memory_disk()
    _, made = begun_rotation(disk)
    disk.kill()
    assert recovered_payloads(disk) == made
    assert not [name for name in disk.names("/journal") if name.endswith(".new")]


ENDS_OF_A_ROTATION = ["sync", "close", "next rotation"]


def end_rotation(journal, then):
    """The records that were written meanwhile."""
    made = []
    if then == "next rotation":
        for number in range(5, 9):
            made.append(b"%200d" % number)
            journal.append(RecordKind.FLUSHED, FEED, 1, made[-1])
        then = "sync"
    getattr(journal, then)()
    return made


def crash_at_each_call(memory_disk, then, fate):
    """A kill, or a power cut that leaves any of the names, from the prepared file to the one that is cut; how many."""
    expected = [b"%200d" % number for number in range(9)]
    number = 0
    while True:
        disk, durable = memory_disk(), 0
        disk.crash_at(number)
        try:
            journal, _ = begun_rotation(disk)
            durable = 2
            end_rotation(journal, then)
        except disk.Crashed:
            number += 1
        else:
            return number
        for names in [None, *disk.survivals()]:
            one = disk.fork()
            if names is None:
                one.kill()
            else:
                one.cut_power(fate, names)
            found = recovered_payloads(one)
            assert found == expected[: len(found)]
            assert len(found) >= (5 if durable and names is None else durable)


@pytest.mark.parametrize("then", ENDS_OF_A_ROTATION)
@pytest.mark.parametrize("fate", [KEEP, LOSE, random.Random(1)])
def test_a_crash_at_each_call_of_a_rotation(memory_disk, then, fate):
    assert crash_at_each_call(memory_disk, then, fate) > 10


@pytest.mark.parametrize("then", ENDS_OF_A_ROTATION)
def test_after_a_rotation_all_is_durable(memory_disk, then):
    disk = memory_disk()
    journal, made = begun_rotation(disk)
    made += end_rotation(journal, then)
    assert journal.synced == journal.written
    disk.cut_power(LOSE)
    assert recovered_payloads(disk) == made


def test_a_prepared_file_that_no_record_was_written_to_is_removed(memory_disk):
    disk = memory_disk()
    journal, _ = open_journal(disk, "/journal", file_bytes_max=FILE_BYTES_MAX)
    for _ in range(2):
        journal.append(RecordKind.FLUSHED, FEED, 1, bytes(200))
    journal.sync()
    assert disk.names("/journal") == ["00000001.log", "next.log.new"]
    disk.kill()
    assert recovered_payloads(disk) == [bytes(200)] * 2
    assert disk.names("/journal") == ["00000001.log"]


def no_sync_at_birth(disk, path, file):
    disk.rename(path + ".new", path)
    disk.sync_directory(os.path.dirname(path))
    file.sync()


def no_sync_of_the_name(disk, path, file):
    file.sync()
    disk.rename(path + ".new", path)


def named_before_its_sync(disk, directory, file, temporary, path):
    disk.rename(temporary, path)
    directory.sync()
    file.sync()


def named_without_a_sync(disk, directory, file, temporary, path):
    file.sync()
    disk.rename(temporary, path)


def no_sync_of_the_finished_file(rotation):
    """Its successor gets its name all the same."""


def no_copies(rotation, *record):
    """As if a killed process had given the next file its name."""
    return True


def cut_too_early(rotation, make_durable=Rotation.make_durable):
    rotation._file.truncate(rotation.end)
    make_durable(rotation)


def cut_and_no_copies_after_it(rotation, *record, copy=Rotation.copy):
    """As if the file ended there."""
    rotation._file.truncate(rotation.end)
    return copy(rotation, *record)


def no_sync(journal):
    journal.synced = journal.written


def records_that_take_the_place_of_zeros(space, offset, end, syncs):
    """As if zeros came at a distance that is always enough."""


def zeros_that_no_record_overtakes(space, used, begin, end):
    """As if the loop's thread waited for the fsync of zeros."""
    space.limit = end
    return True


def gone_on_with_in_place(disk, directory, newest, key, begin_file=recovery._continue):
    """As if a second fsync could make up for one that failed."""
    if newest is None:
        return begin_file(disk, directory, newest, key)
    file = disk.open(newest.path, writable=True)
    file.truncate(newest.facts.end)
    file.sync()
    return recovery.FileExtent(newest.path, newest.header, newest.facts.end), file, recovery.Copied()


@pytest.mark.slow
@pytest.mark.planted
@pytest.mark.parametrize(
    ("place", "bug"),
    [
        ("writer.name_file", named_before_its_sync),
        ("recovery.publish_file", no_sync_at_birth),
        ("writer.name_file", named_without_a_sync),
        ("recovery.publish_file", no_sync_of_the_name),
        ("writer.Rotation.make_durable", no_sync_of_the_finished_file),
        ("writer.Journal.sync", no_sync),
        ("recovery._continue", gone_on_with_in_place),
        ("space.Space.reserve", records_that_take_the_place_of_zeros),
        ("space.Space._give", zeros_that_no_record_overtakes),
    ],
)
def test_a_planted_bug_is_found(memory_disk, place, bug):
    def lives():
        for seed in range(300):
            live(memory_disk(), seed)

    lives()
    with mock.patch(f"tailrace_server.journal.{place}", bug), pytest.raises((AssertionError, JournalDamaged)):
        lives()


@pytest.mark.slow
@pytest.mark.planted
@pytest.mark.parametrize(
    ("place", "bug"),
    [
        ("writer.name_file", named_before_its_sync),
        ("writer.Rotation.make_durable", no_sync_of_the_finished_file),
        ("writer.Rotation.make_durable", cut_too_early),
        ("writer.Rotation.copy", no_copies),
        ("writer.Rotation.copy", cut_and_no_copies_after_it),
    ],
)
def test_a_planted_bug_of_a_rotation_is_found(memory_disk, place, bug):
    def crashes():
        for fate, then in itertools.product([KEEP, LOSE], ENDS_OF_A_ROTATION):
            crash_at_each_call(memory_disk, then, fate)

    with mock.patch(f"tailrace_server.journal.{place}", bug), pytest.raises((AssertionError, JournalDamaged)):
        crashes()


def test_the_header_of_a_file_says_what_was_durable_at_its_birth(memory_disk):
    disk = memory_disk()
    journal, _ = open_journal(disk, "/journal")
    journal.append(RecordKind.FLUSHED, FEED, 0, b"x" * 8)
    disk.kill()
    open_journal(disk, "/journal")
    header = JournalHeader.unpack(bytes(disk.content("/journal/00000001.log")[:FILE_HEADER_BYTES]))
    assert header.synced == FILE_HEADER_BYTES + 96 + 8
