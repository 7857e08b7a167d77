"""A token appears in no log, status, metric, text of an object, error or plan."""

import json
import logging
import traceback

import pytest
from tests.tailrace_server.serving.test_bearers import get

import tailrace
from tailrace import blocking
from tailrace.cli.options import target
from tailrace.model.tokens import new_token
from tailrace.wire.messages import Hello
from tailrace_server.serving.console import http_listener


async def test_a_token_is_nowhere(secured, caplog):
    caplog.set_level(logging.DEBUG)
    token, wrong = await secured.token("reader", "read"), new_token().text
    told = []
    async with http_listener(secured.running.node, ("127.0.0.1", 0)) as address:
        for path in ("/", "/api/status", "/metrics"):
            told.append((await get(address, path, token))[1])
            told.append((await get(address, path, wrong))[1])
    async with secured.connect(token, name="a reader") as client:
        await client.feed("orders").get(b"k")
        told += [json.dumps((await client.status()).details), repr(client), repr(client.__dict__)]
        told += [repr(client.feed("orders")), repr(vars(client._core))]
        for forbidden in (client.create_feed("mine"), client.feed("orders").put(b"k", b"v")):
            with pytest.raises(tailrace.Forbidden) as caught:
                await forbidden
            told += traceback.format_exception(caught.value)
    with pytest.raises(tailrace.Forbidden) as caught:
        async with secured.connect(wrong):
            pass
    told += traceback.format_exception(caught.value)
    async with secured.connect(secured.admin) as admin:
        told += map(repr, await admin.tokens())
    told += [record.getMessage() + str(record.__dict__) for record in caplog.records]
    found = [text for text in told for secret in (token, wrong, secured.admin) if secret.split("_")[2] in text]
    assert not found


def test_the_texts_of_objects_that_have_a_token():
    token = new_token()
    secret = token.text.split("_")[2]
    client = blocking.connect("tailrace://127.0.0.1:1", token=token.text)
    objects = (token, Hello(token=token.text), target("put", "tailrace://a:1", None, token.text), client)
    texts = [repr(each) for each in objects] + [repr(vars(client)), repr(vars(client._core)), f"{token}", f"{objects}"]
    assert not [text for text in texts if secret in text]
