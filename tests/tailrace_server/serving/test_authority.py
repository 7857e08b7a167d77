"""Tokens on a node that requires them: who may connect, and when a connection ends."""

import dataclasses
import os
import stat
from pathlib import Path

import pytest
from tests.tailrace_server.replication.made_set import until

import tailrace
from tailrace import EndReason
from tailrace.model.tokens import new_token
from tailrace.wire.messages import decode_error
from tailrace.wire.opcodes import Opcode
from tailrace_server.feeds.token_rows import TokenRows, row_key
from tailrace_server.host.line_limit import INTERVAL_SECONDS, LINES_FREE


def files_of(folder):
    """The content of every file by its path."""
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def holders_of(made):
    return [node for node in made if Path(node.config.data, "admin.token").exists()]


async def to_mutations(stream):
    async for event in stream:
        if isinstance(event, tailrace.Mutations):
            return


async def drain(stream):
    async for _ in stream:
        pass


async def test_a_client_without_a_token_is_refused(secured):
    with pytest.raises(tailrace.Forbidden, match="requires a token"):
        async with secured.connect():
            pass


async def test_the_admin_token_is_for_its_owner_alone(secured):
    path = os.path.join(secured.running.config.data, "admin.token")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


async def test_the_admin_token_stays_after_a_restart(secured):
    before = secured.admin
    await secured.running.stop()
    await secured.running.start()
    async with secured.connect(before) as client:
        assert [info.name for info in await client.tokens()] == ["admin"]
    assert secured.admin == before


async def test_an_admin_without_a_token_gets_one_by_a_restart(secured):
    async with secured.connect(secured.admin) as client:
        await client.revoke_token("admin")
    before = secured.admin
    await secured.running.stop()
    await secured.running.start()
    assert secured.admin != before
    async with secured.connect(secured.admin) as client:
        assert len(await client.tokens()) == 1


async def test_a_token_is_listed_without_its_secret(secured):
    made = await secured.token("shop", "write", feeds=["orders"], key_prefix=b"eu/", expires_s=60)
    async with secured.connect(secured.admin) as client:
        _, shop = await client.tokens()
    assert (shop.name, shop.role, shop.feeds, shop.key_prefix) == ("shop", "write", ("orders",), b"eu/")
    assert shop.expires_at - shop.created_at == 60_000_000
    assert made.split("_")[1] == shop.token_id.hex()
    assert made.split("_")[2] not in repr(shop)


async def test_only_a_hash_of_the_secret_is_on_the_disk(secured):
    made = await secured.token("shop", "read")
    await secured.running.stop()
    secret = made.split("_")[2]
    for path, data in files_of(secured.running.config.data).items():
        assert secret.encode() not in data, path
        assert bytes.fromhex(secret) not in data, path


async def test_a_name_is_used_once(secured):
    await secured.token("shop", "read")
    with pytest.raises(tailrace.TailraceError, match="there is a token 'shop' already"):
        await secured.token("shop", "write")


async def test_a_limited_token_cannot_be_of_an_operator(secured):
    with pytest.raises(ValueError, match="cannot be limited"):
        await secured.token("shop", "admin", feeds=["orders"])


async def refusal(secured, token):
    with pytest.raises(tailrace.Forbidden) as caught:
        async with secured.raw(token):
            pass
    return str(caught.value)


async def test_unknown_expired_revoked_and_wrong_tokens_get_the_same_answer(secured, caplog):
    expired, revoked = await secured.token("old", "read", expires_s=0.001), await secured.token("gone", "read")
    valid = await secured.token("shop", "read")
    wrong = valid[:-64] + new_token().text[-64:]
    async with secured.connect(secured.admin) as client:
        await client.revoke_token("gone")
    answers = [await refusal(secured, token) for token in (new_token().text, expired, revoked, wrong, "no token")]
    assert len(set(answers)) == 1, answers
    logged = [record.getMessage() for record in caplog.records if "was refused" in record.getMessage()]
    reasons = ("unknown", "'old' has expired", "revoked", "not that of token 'shop'", "unknown")
    assert all(reason in line for reason, line in zip(reasons, logged, strict=True)), logged


async def test_a_flood_of_wrong_tokens_has_few_lines(secured, caplog):
    authority = secured.running.node.services.authority
    for port in range(LINES_FREE + 40):
        with pytest.raises(tailrace.Forbidden):
            authority.identify(new_token().text, f"10.0.0.1:{port}")
    assert len([record for record in caplog.records if "of 10.0.0.1" in record.getMessage()]) == LINES_FREE
    assert authority._lines.ended(secured.running.node.services.clock.monotonic() + INTERVAL_SECONDS) == [
        ("10.0.0.1", 40)
    ]


async def test_a_revoked_token_ends_its_streams(secured):
    reader = await secured.token("reader", "read")
    async with secured.connect(secured.admin) as admin:
        await admin.feed("orders").put(b"k", b"v")
        with pytest.raises(tailrace.Forbidden, match="revoked"):  # noqa: PT012
            async with secured.connect(reader) as client, client.feed("orders").consume() as stream:
                await to_mutations(stream)
                await admin.revoke_token("reader")
                await drain(stream)


async def test_a_revoked_token_ends_a_stream_with_a_typed_reason(secured):
    token = await secured.token("reader", "read")
    principal = None
    async with secured.raw(token) as connection:
        [open_connection] = secured.running.node.connections
        principal = open_connection.access.principal
        assert (principal.name, principal.role) == ("reader", "read")
        async with secured.connect(secured.admin) as admin:
            await admin.revoke_token("reader")
        error = decode_error((await connection.receive()).body)
        assert isinstance(error, tailrace.Forbidden)
        assert await connection.is_closed()
    assert EndReason.FORBIDDEN.value == "forbidden"


async def test_an_expired_token_ends_its_connection(secured):
    token = await secured.token("reader", "read", expires_s=1.5)
    async with secured.raw(token) as connection:
        error = decode_error((await connection.receive()).body)
    assert isinstance(error, tailrace.Forbidden)
    assert "has expired" in str(error)


async def test_other_tokens_stay_when_one_is_revoked(secured):
    keeper = await secured.token("keeper", "read")
    await secured.token("reader", "read")
    async with secured.connect(keeper) as client:
        async with secured.connect(secured.admin) as admin:
            await admin.revoke_token("reader")
        secured.running.node.services.authority.check(secured.running.node.connections)
        assert await client.feed("orders").get(b"k") is None


async def test_the_secret_of_nodes_is_a_replica(run_node, node_config):
    secret = "s" * 40
    running = await run_node(dataclasses.replace(node_config, auth=True, peer_token=secret))
    assert secret not in repr(running.config)
    with pytest.raises(tailrace.Forbidden, match="role admin is needed"):
        async with tailrace.connect(running.url, token=secret) as client:
            await client.create_feed("orders")


@pytest.mark.parametrize("token", ["", "tr1_", "\ud800", "x" * 60_000, "tr1_" + "0" * 16 + "_" + "0" * 64 + "\n", "\0"])
async def test_a_text_that_is_no_token_is_refused_like_one(run_node, node_config, token, caplog):
    running = await run_node(dataclasses.replace(node_config, auth=True, peer_token="s" * 40))
    with pytest.raises(tailrace.Forbidden, match="the token is unknown here"):
        async with tailrace.connect(running.url, token=token):
            pass
    assert "Traceback" not in caplog.text


async def test_a_node_that_requires_none_takes_any(running):
    async with tailrace.connect(running.url, token=new_token().text) as client:
        await client.create_feed("orders")


def test_rows_of_later_versions_are_left_alone():
    rows = TokenRows()
    rows.take(b"something else", b"{}")
    rows.take(row_key(bytes(8))[:-1], b"{}")
    assert len(rows) == 0


async def test_every_member_of_a_set_knows_tokens_and_ends_revoked_ones(new_set):
    made = new_set(auth=True, peer_token="p" * 40)
    await made.start()
    await made.settled()
    leader = made.leader
    await until(lambda: holders_of(made))
    assert holders_of(made) == [leader]
    admin_token = files_of(leader.config.data)[f"{leader.config.data}/admin.token"].decode().strip()
    async with tailrace.connect(leader.url, token=admin_token, retry_for=60) as admin:
        reader = await admin.create_token("reader", role="read")
        feed = await admin.create_feed("orders", partitions=1)
        await feed.put(b"k", b"v")
        follower = next(node for node in made if node is not leader)
        with pytest.raises(tailrace.Forbidden, match="revoked"):  # noqa: PT012
            async with (
                tailrace.connect(follower.url, token=reader, state="follower", retry_for=60) as client,
                client.feed("orders").consume() as stream,
            ):
                await to_mutations(stream)
                await admin.revoke_token("reader")
                await drain(stream)


async def test_a_member_without_the_secret_is_none(new_set):
    made = new_set(auth=True, peer_token="p" * 40)
    await made.start()
    await made.settled()
    with pytest.raises(tailrace.Forbidden, match="requires a token"):
        async with tailrace.connect(made.leader.url) as client:
            await client.call(Opcode.MEMBER, {})
