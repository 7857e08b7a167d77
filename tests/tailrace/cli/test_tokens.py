"""``tailrace token`` against a real node."""

from __future__ import annotations

import json

import pytest

from tailrace.model.tokens import parse_token


def test_a_token_is_created_listed_and_revoked(call, unused_name):
    created = call(
        "token", "create", unused_name, "--role", "write", "--feed", "orders", "--key-prefix", "eu/", "--expires", "90d"
    )
    assert (created.code, created.err) == (0, f"this is token {unused_name}; it is not shown again\n")
    token = created.out.decode().strip()
    assert parse_token(token) is not None
    listed = [json.loads(line) for line in call("token", "list", "--json").out.splitlines()]
    [found] = [info for info in listed if info["name"] == unused_name]
    assert (found["role"], found["feeds"], found["key_prefix"]) == ("write", ["orders"], "eu/")
    assert found["expires_at"] - found["created_at"] == 90 * 86_400 * 1_000_000
    shown = call("token", "list").out
    assert unused_name.encode() in shown
    assert token.split("_")[2].encode() not in shown
    assert call("token", "revoke", unused_name) == (0, b"", "")
    assert unused_name.encode() not in call("token", "list").out


def test_json(call, unused_name):
    created = json.loads(call("token", "create", unused_name, "--role", "read", "--json").out)
    assert created["name"] == unused_name
    assert parse_token(created["token"]) is not None
    assert json.loads(call("token", "revoke", unused_name, "--json").out) == {"revoked": unused_name}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--role", "boss"], "'boss'"),
        (["--role", "read", "--expires", "soon"], "--expires: 'soon' is no span of time"),
        (["--role", "read", "--expires", "0d"], "expires_s is 0"),
        (["--role", "admin", "--feed", "orders"], "cannot be limited to feeds or keys"),
        ([], "--role"),
    ],
)
def test_what_cannot_be_created(call, unused_name, options, message):
    done = call("token", "create", unused_name, *options)
    assert (done.code, done.out) == (2, b"")
    assert message in done.err


def test_a_name_that_no_token_has(call, unused_name):
    done = call("token", "revoke", unused_name)
    assert done == (1, b"", f"tailrace: there is no token '{unused_name}'; list the tokens there are\n")
