"""How the descriptors of a process are shared between connections, segments and all else."""

from __future__ import annotations

import logging

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.config import Limits, StorageConfig
from tailrace_server.node.descriptors import connections_of, permitted_limits, permitted_storage, wanted_descriptors


def test_the_default_limits_need_12_000_descriptors():
    assert wanted_descriptors(Limits()) == 12_000
    assert wanted_descriptors(Limits(connections_max=8)) == 12_000


@given(st.integers(8, 1_000_000), st.integers(1, 16_384))
def test_a_process_that_gets_what_it_wants_serves_all_connections(connections, websockets):
    limits = Limits(connections_max=connections, websocket_connections_max=websockets)
    assert permitted_limits(limits, wanted_descriptors(limits)) == limits


@given(st.integers(1, 1_000_000))
def test_connections_never_take_all_descriptors(descriptors):
    assert 1 <= connections_of(descriptors) < max(descriptors, 2)


def test_fewer_connections_than_were_asked_for_are_told_with_the_descriptors_that_are_missing(caplog):
    with caplog.at_level(logging.WARNING):
        limits = permitted_limits(Limits(connections_max=12_000), 10_000)
    assert limits.connections_max == 5_000
    assert "limits.connections_max is 12000" in caplog.text
    assert "10000 open files" in caplog.text
    assert "serves 5000 connections" in caplog.text
    assert "permit it 19904 open files (ulimit -n; LimitNOFILE of systemd)" in caplog.text


def test_segments_have_a_quarter_of_few_descriptors():
    assert permitted_storage(StorageConfig(), 4_000).segments_open_max == 1_000
    assert permitted_storage(StorageConfig(), 40_000).segments_open_max == 2_048
