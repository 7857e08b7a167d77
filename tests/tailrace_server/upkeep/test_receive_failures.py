"""The failures of partitions to take a segment, and their pauses."""

from types import SimpleNamespace

import pytest

from tailrace.errors import BadSegment, NoSpace
from tailrace_server.partition.partition import Partition
from tailrace_server.upkeep.receive_failures import PAUSE_SECONDS_MAX, ReceiveFailures


@pytest.fixture
def partition():
    return Partition(b"f" * 16, 3, 0, 1)


def made():
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    return ReceiveFailures(clock), clock


def test_the_first_failure_has_no_pause_and_each_further_one_a_longer_one(partition):
    failures, clock = made()
    pauses = []
    for _ in range(9):
        failures.failed(partition, OSError("the disk"))
        began = clock.now
        while failures.why_not_yet(partition):
            clock.now += 1.0
        pauses.append(clock.now - began)
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, *3 * [PAUSE_SECONDS_MAX]]


def test_a_success_ends_the_pause_and_the_count(partition):
    failures, _ = made()
    for _ in range(3):
        failures.failed(partition, OSError("the disk"))
    assert "the disk" in failures.why_not_yet(partition)
    assert dict(failures) == {partition: "the disk (failure 3 in a row)"}
    failures.succeeded(partition)
    assert not failures.why_not_yet(partition)
    assert partition not in failures
    failures.failed(partition, OSError("the disk"))
    assert not failures.why_not_yet(partition)


def test_an_error_is_logged_once_with_what_to_do(partition, caplog):
    failures, _ = made()
    for error in (NoSpace("full"), NoSpace("full"), BadSegment("damaged"), RuntimeError()):
        told = failures.failed(partition, error)
    assert told.startswith("RuntimeError. ")
    assert [
        ("Free space" in text, "tailrace verify" in text, "report the error" in text) for text in caplog.messages
    ] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]


def test_a_dropped_partition_is_not_listed(partition):
    failures, _ = made()
    partition.drop()
    failures.failed(partition, OSError("the disk"))
    assert partition not in failures
