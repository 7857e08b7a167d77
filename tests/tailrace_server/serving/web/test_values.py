"""The bound of values that are on their way to clients."""

import pytest
from tests.tailrace_server.replication.made_set import until
from tests.tailrace_server.serving.web.conftest import opened_web

import tailrace
from tailrace_server.serving.web import api
from tailrace_server.serving.web.values import Values

# Longer than what the sockets of a connection hold.
LONG = b"v" * (8 * 1024 * 1024)


def test_values_together_are_bounded():
    values = Values(10)
    with values.held(8):
        with pytest.raises(tailrace.Overloaded, match="have 8 bytes"), values.held(3):
            pass
        with values.held(2):
            assert values.nbytes == 10
    assert values.nbytes == 0


async def test_values_that_are_not_read_cost_a_bounded_number_of_bytes(running, orders, monkeypatch):
    """250 clients that read nothing kept 4 GB."""
    values = Values(len(LONG) + 1)
    monkeypatch.setattr(api, "Values", lambda: values)
    await orders.put(b"long", LONG)
    await orders.put(b"short", b"12")
    async with opened_web(running.node) as web:
        async with web.opened("GET", "/feeds/orders/keys/long") as unread:
            assert (await unread.head()).code == 200
            refused = await web("GET", "/feeds/orders/keys/short")
            assert (refused.code, refused.json["error"], refused.headers["retry-after"]) == (503, "Overloaded", "1")
            assert "etag" not in refused.headers
        await until(lambda: not values.nbytes)
        assert (await web("GET", "/feeds/orders/keys/long")).body == LONG
