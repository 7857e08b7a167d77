"""The audit log: a line for each request of administration."""

import logging

import pytest
from tests.tailrace_server.serving.secured import ask

import tailrace
from tailrace.wire.opcodes import Opcode
from tailrace_server.host.line_limit import INTERVAL_SECONDS, LINES_FREE
from tailrace_server.serving.access import RULES
from tailrace_server.serving.audit import AUDITED


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "tailrace.audit")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "tailrace.audit"]


def test_all_that_only_an_operator_may_do_is_audited():
    of_operators = {opcode for opcode, rule in RULES.items() if rule.roles == {"admin"}}
    assert of_operators - AUDITED == {Opcode.LIST_TOKENS}


async def test_who_did_what_from_where(secured, lines):
    async with secured.connect(secured.admin) as client:
        token = await client.create_token("shop", role="write", feeds=["orders"])
        await client.drop_feed("payments")
        await client.revoke_token("shop")
    created, dropped, revoked = lines()[-3:]
    for line in (created, dropped, revoked):
        assert line.startswith("token 'admin' (role admin) at 127.0.0.1:")
        assert line.endswith(": done")
    assert 'CREATE_TOKEN {"name": "shop", "role": "write"' in created
    assert '"feed": "payments"' in dropped
    assert '"name": "shop"' in revoked
    assert token.split("_")[2] not in "".join(lines())
    assert "secret_hash" not in created


async def test_a_refused_request_is_in_it(secured, lines):
    token = await secured.token("shop", "write")
    async with secured.connect(token) as client:
        with pytest.raises(tailrace.Forbidden):
            await client.create_feed("mine\n")
    assert "token 'shop' (role write) at 127.0.0.1:" in lines()[-1]
    assert "CREATE_FEED" in lines()[-1]
    assert "refused: Forbidden:" in lines()[-1]
    assert "\n" not in lines()[-1]


async def test_no_id_of_a_request_hides_another(secured, lines):
    async with secured.raw(secured.admin) as connection:
        for name in ("a", "b"):
            await ask(connection, Opcode.DROP_FEED, {"feed_id": name.encode().hex() * 16}, id=1)
    assert len([line for line in lines() if "DROP_FEED" in line]) == 2


async def test_a_flood_of_refused_requests_has_one_line_for_the_rest(secured, lines):
    audit, token = secured.running.node.services.audit, await secured.token("shop", "write")
    async with secured.raw(token) as connection:
        for _ in range(LINES_FREE + 40):
            assert isinstance(await ask(connection, Opcode.DROP_FEED, {"feed_id": "0" * 32}), tailrace.Forbidden)
    assert len([line for line in lines() if "DROP_FEED" in line]) == LINES_FREE
    audit.tick(secured.running.node.services.clock.monotonic() + INTERVAL_SECONDS)
    assert lines()[-1] == "token 'shop' (role write) at 127.0.0.1: DROP_FEED: refused 40 more times"


async def test_a_request_without_an_answer_is_in_it(secured, lines):
    async with secured.raw(secured.admin) as connection:
        assert isinstance(await ask(connection, Opcode.DROP_FEED, {}), tailrace.ProtocolError)
        assert await connection.is_closed()
    assert any("DROP_FEED {" in line and "not known" in line for line in lines())


async def test_a_node_that_asks_for_no_token(client, lines):
    await client.create_feed("orders")
    assert lines()[-1].startswith("anyone at 127.0.0.1:")
