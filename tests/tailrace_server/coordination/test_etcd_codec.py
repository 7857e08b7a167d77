"""The JSON of etcd's gateway."""

from __future__ import annotations

import contextlib
import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tailrace_server.coordination.coordinator import Entry, Put, StoreDamaged, Unchanged
from tailrace_server.coordination.etcd_codec import (
    Change,
    Fault,
    Header,
    encode,
    entries_of,
    fault_of,
    header_of,
    newest_in,
    newest_of,
    parse,
    prefix_range,
    txn_body,
    watched_of,
)

HEADER = {"cluster_id": "12345678901234567890", "revision": "7"}


def kv(key, value, created=3, changed=5):
    return {"key": encode(key), "value": encode(value), "create_revision": str(created), "mod_revision": str(changed)}


def test_a_transaction_compares_revisions_and_puts_and_deletes():
    body = txn_body([Unchanged("a", 7)], [Put("a", b"1", 9), Put("b", None)])
    assert body == {
        "compare": [{"key": "YQ==", "target": "MOD", "result": "EQUAL", "mod_revision": "7"}],
        "success": [
            {"request_put": {"key": "YQ==", "value": "MQ==", "lease": "9"}},
            {"request_delete_range": {"key": "Yg=="}},
        ],
        "failure": [],
    }


def test_the_range_of_a_prefix_ends_behind_its_last_key():
    assert prefix_range("/t/") == {"key": encode("/t/"), "range_end": encode("/t0")}


def test_entries_come_with_their_revisions():
    assert entries_of({"kvs": [kv("a", b"\xff"), kv("b", b"")]}) == {"a": Entry(b"\xff", 5, 3), "b": Entry(b"", 5, 3)}
    assert entries_of({}) == {}
    assert header_of({"header": HEADER}) == Header(12345678901234567890, 7)


def test_the_newest_change_of_keys_is_the_same_by_an_answer_and_by_the_keys():
    keys = [kv("a", b"1", changed=9), kv("b", b"2", changed=4)]
    assert newest_in({"kvs": keys[:1], "count": "2"}) == newest_of(entries_of({"kvs": keys})) == (2, 9)
    assert newest_in({}) == newest_of({}) == (0, 0)


def test_messages_of_a_watch():
    events = [{"kv": kv("a", b"1")}, {"type": "DELETE", "kv": {"key": encode("b"), "mod_revision": "6"}}]
    found = watched_of(json.dumps({"result": {"header": HEADER, "events": events}}).encode())
    assert found.changes == (Change("a", Entry(b"1", 5, 3)), Change("b", Entry(None, 6)))
    assert not found.ended
    ended = {"result": {"header": HEADER, "canceled": True, "compact_revision": "4"}}
    found = watched_of(json.dumps(ended).encode())
    assert found.compacted
    assert "compacted" in found.ended
    assert watched_of(b'{"error": {"message": "etcdserver: no leader"}}').ended == "etcdserver: no leader"


@pytest.mark.parametrize(
    ("status", "value", "fault"),
    [
        (401, {"error": "etcdserver: invalid auth token", "code": 16}, Fault.TOKEN),
        (400, {"error": "etcdserver: user name is empty", "code": 3}, Fault.TOKEN),
        (403, {"error": "etcdserver: permission denied", "code": 7}, Fault.REFUSED),
        (400, {"error": "etcdserver: authentication failed, invalid user ID or password", "code": 3}, Fault.REFUSED),
        (412, {"error": "etcdserver: authentication is not enabled", "code": 9}, Fault.REFUSED),
        (404, {"error": "etcdserver: requested lease not found", "code": 5}, Fault.LEASE_GONE),
        (429, {"error": "etcdserver: mvcc: database space exceeded", "code": 8}, Fault.READ_ONLY),
        (503, {"error": "etcdserver: no leader", "code": 14}, Fault.UNAVAILABLE),
        (503, {"error": "etcdserver: request timed out", "code": 14}, Fault.UNAVAILABLE),
        (429, {"error": "etcdserver: too many requests", "code": 8}, Fault.UNAVAILABLE),
        (502, {"error": "HTTP 502"}, Fault.UNAVAILABLE),
        (400, {"error": "etcdserver: duplicate key given in txn request", "code": 3}, Fault.OTHER),
    ],
)
def test_errors_are_told_apart(status, value, fault):
    assert fault_of(status, value) is fault


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["result", "header", "events", "kv", "key", "value", "kvs", "revision", "error", "code", "canceled"]
            ),
            inner,
            max_size=4,
        )
    ),
)


@given(VALUES)
def test_an_answer_of_any_form_is_read_or_is_damaged(value):
    data = json.dumps(value).encode()
    for read in (lambda: header_of(parse(data)), lambda: entries_of(parse(data)), lambda: watched_of(data)):
        with contextlib.suppress(StoreDamaged):
            read()
    if isinstance(value, dict):
        assert fault_of(400, value) in Fault


@given(st.binary(max_size=50))
def test_bytes_that_are_no_json_are_damaged_or_read(data):
    with contextlib.suppress(StoreDamaged):
        assert isinstance(parse(data), dict)
