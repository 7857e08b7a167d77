"""What the producers of all partitions of a node hold together."""

import gc
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace.model import VersionRange
from tailrace_server.partition.partition import Partition
from tailrace_server.state.memory import MemoryAccount
from tailrace_server.state.producers import ENTRY_AGE_S_MAX, FORGOTTEN_AGE_S_MAX, ProducerTable, ResendVerdict

BRANCH = b"u" * 16
FEED = b"f" * 16


def partitions_of(account, count):
    made = [Partition(FEED, number, 0, 2**64 - 1, account) for number in range(count)]
    gc.collect()
    return made


def record(partition, producer, now, number=1):
    seq = 10 * producer + number
    partition.producers.record(producer, number, VersionRange(partition.id, BRANCH, seq, seq), now)


def held(account, partitions):
    """What the account should say."""
    return sum(p.producers._charged for p in partitions)


@pytest.mark.slow
def test_short_clients_cost_a_fifth_of_a_kilobyte_each():
    """300 clients that wrote a block to each of 256 partitions: they cost 107 MiB for an hour."""
    account = MemoryAccount(256 << 20)
    partitions = partitions_of(account, 256)
    tracemalloc.start()
    try:
        for client in range(1, 301):
            for partition in partitions:
                record(partition, client << 32 | partition.id, client)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(partition.producers) for partition in partitions] == [300] * 256
    assert taken <= 300 * 256 * 200
    assert taken <= 1.1 * account.producers.used + 256 * 1_024


@pytest.mark.slow
def test_a_node_forgets_the_least_recently_used_of_all_partitions():
    """One million producers want four times what there is room for."""
    account = MemoryAccount(64 << 20)
    bound = account.producers.bytes_max
    assert bound == 16 << 20
    partitions = partitions_of(account, 64)
    clients = 4 * bound // (64 * 170)
    for client in range(1, clients + 1):
        for partition in partitions[:: 1 + client % 3]:
            record(partition, client, float(client))
        assert account.held == account.producers.used <= bound
    assert account.producers.used == held(account, partitions)
    left = [partition.producers.used_at().min() for partition in partitions]
    assert max(left) - min(left) <= 3, "all forget what is older than the same moment"
    for partition in partitions:
        decision = partition.producers.decide(1, 1, resend=True, now=clients)
        assert decision.verdict is ResendVerdict.UNKNOWN, "it may have been written"
        newest = int(partition.producers.used_at().max())
        assert partition.producers.decide(newest, 1, resend=True, now=clients).verdict is ResendVerdict.DUPLICATE


@pytest.mark.slow
def test_no_block_waits_until_the_tables_of_all_partitions_have_forgotten(monkeypatch):
    """With 4,096 partitions all of them took 2.2 to 3.6 s, in which the node did nothing else."""
    forgetting = []
    evict_through = ProducerTable.evict_through

    def counted(table, used_at, now):
        forgetting.append(table)
        evict_through(table, used_at, now)

    monkeypatch.setattr(ProducerTable, "evict_through", counted)
    account = MemoryAccount(4 << 20)
    bound = account.producers.bytes_max
    partitions = partitions_of(account, 200)
    most = 0
    for client in range(1, 101):
        for place, partition in enumerate(partitions):
            forgetting.clear()
            record(partition, client, client + place / 1_000)
            most = max(most, len(forgetting))
            assert account.producers.used <= bound + bound // 20
    assert 0 < most <= 64
    assert account.producers.used == held(account, partitions)
    for partition in partitions:
        assert partition.producers.used_at().min() > 1.0, "each has forgotten"
        assert partition.producers.decide(100, 1, resend=True, now=101.0).verdict is ResendVerdict.DUPLICATE


def test_those_over_their_age_go_first():
    account = MemoryAccount(1 << 20)
    old, new = partitions_of(account, 2)
    for client in range(1, 700):
        record(old, client, 0.0)
    now = ENTRY_AGE_S_MAX
    client = 0
    while len(old.producers):
        client += 1
        record(new, client, now)
    assert len(new.producers) == client
    assert new.producers.decide(client + 1, 1, resend=True, now=now).verdict is ResendVerdict.ACCEPT
    assert old.producers.decide(1, 1, resend=True, now=now).verdict is ResendVerdict.UNKNOWN


def test_what_is_left_is_given_back():
    account = MemoryAccount(1 << 20)
    partition, other = partitions_of(account, 2)
    for client in range(1, 100):
        record(partition, client, 1.0)
    assert account.held == held(account, [partition]) > 0
    table = ProducerTable()
    table.record(1, 1, VersionRange(0, BRANCH, 5, 5), 1.0)
    other.replace_producers(table)
    assert account.held == held(account, [partition, other])
    other.replace_producers(ProducerTable())
    assert account.held == held(account, [partition])
    partition.producers.drop_above(0)
    assert account.held == 0
    for client in range(1, 100):
        record(partition, client, 1.0)
    partition.drop()
    assert account.held == account.producers.used == 0


def test_the_write_queues_keep_three_quarters():
    """Otherwise a flush could not make room, and writers would wait for ever."""
    account = MemoryAccount(1 << 20)
    [partition] = partitions_of(account, 1)
    for client in range(1, 9_999):
        record(partition, client, float(client))
        assert account.held <= account.bytes_max // 4
    account.change(3 * account.bytes_max // 4 - 1)
    assert not account.is_full


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3), st.integers(1, 40)),
        st.tuples(st.just("resend"), st.integers(0, 3), st.integers(1, 40)),
        st.tuples(st.just("wait"), st.integers(0, 3), st.integers(1, 2_000)),
        st.tuples(st.just("restart"), st.integers(0, 3), st.just(0)),
    ),
    max_size=60,
)


@pytest.mark.slow
@pytest.mark.parametrize("bytes_max", [4 * 1_000, 4 * 3_000, 4 * 20_000])
@given(taken=steps)
@settings(max_examples=examples(20))
def test_forgetting_never_writes_a_resend_twice(bytes_max, taken):
    """A resend within a day is recognised, or refused; its producer's next block is taken in order or refused."""
    account = MemoryAccount(bytes_max)
    partitions = partitions_of(account, 4)
    now, written = 0.0, {}
    for kind, place, client in taken:
        table = partitions[place].producers
        if kind == "wait":
            now += client
        elif kind == "restart":
            entries, evicted_age_s = table.snapshot(now)
            partitions[place].replace_producers(ProducerTable())
            partitions[place].producers.restore(entries, evicted_age_s, now)
        else:
            last, at = written.get((place, client), (0, now))
            number = last + 1 if kind == "write" or not last else last
            decision = table.decide(client, number, resend=kind == "resend", now=now)
            if number <= last and now - at < FORGOTTEN_AGE_S_MAX:
                assert decision.verdict in (ResendVerdict.DUPLICATE, ResendVerdict.UNKNOWN)
            elif number <= last:
                assert decision.verdict in (
                    ResendVerdict.DUPLICATE,
                    ResendVerdict.UNKNOWN,
                    ResendVerdict.OUT_OF_ORDER,
                    ResendVerdict.ACCEPT,
                )
            elif decision.verdict is ResendVerdict.ACCEPT:
                record(partitions[place], client, now, number)
                written[place, client] = number, now
            else:
                assert decision.verdict in (ResendVerdict.OUT_OF_ORDER, ResendVerdict.UNKNOWN)
        assert account.held == account.producers.used == held(account, partitions)
        assert account.producers.used <= account.producers.bytes_max
        assert all(np.all(p.producers.used_at() <= now) for p in partitions)
