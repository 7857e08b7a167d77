"""The feed, the key and the condition of a request."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request

from tailrace.model import Version
from tailrace_server.serving.board.pages import BadRequest, NotFound
from tailrace_server.serving.web.request import Condition, condition_of, feed_and_key, has_tag, query_of
from tailrace_server.serving.web.versions import version_text

VERSION = Version(1, b"b" * 16, 7)
TEXT = version_text(VERSION)


@given(st.binary(min_size=1, max_size=40))
def test_each_key_has_a_path(key):
    escaped = "".join(f"%{byte:02x}" for byte in key)
    assert feed_and_key(f"/feeds/orders/keys/{escaped}".encode()) == ("orders", key)


@given(st.binary(max_size=60))
def test_no_path_is_an_internal_error(rest):
    with contextlib.suppress(BadRequest, NotFound):
        feed_and_key(b"/feeds/" + rest)


@pytest.mark.parametrize(
    ("headers", "query", "condition"),
    [
        ({}, "", Condition()),
        ({"If-Match": f'"{TEXT}"'}, "", Condition(VERSION)),
        ({}, f"if_version={TEXT}", Condition(VERSION)),
        ({"If-None-Match": "*"}, "", Condition(absent=True)),
        ({}, "if_absent=true", Condition(absent=True)),
        ({"If-Match": " * "}, "if_absent=false", Condition(present=True)),
        ({}, "if_present=true", Condition(present=True)),
    ],
)
def test_conditions(headers, query, condition):
    assert condition_of(Headers(headers), QueryParams(query)) == condition


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"If-Match": "*", "If-None-Match": "*"}, ""),
        ({"If-Match": f'"{TEXT}"'}, f"if_version={TEXT}"),
        ({}, "if_absent=true&if_present=true"),
        ({"If-Match": TEXT}, ""),
        ({"If-Match": '"'}, ""),
        ({"If-None-Match": f'"{TEXT}"'}, ""),
    ],
)
def test_wrong_conditions(headers, query):
    with pytest.raises(BadRequest):
        condition_of(Headers(headers), QueryParams(query))


def test_two_headers_are_two_conditions():
    for one, other in ((f'"{TEXT}"', '"0-x-1"'), (f'"{TEXT}"', f'"{TEXT}"'), ("*", "*")):
        with pytest.raises(BadRequest):
            condition_of(Headers(raw=[(b"if-match", one.encode()), (b"if-match", other.encode())]), QueryParams(""))


@pytest.mark.parametrize(
    "query", [b"producer=%ff&batch=0", b"producer=%ed%a0%80&batch=0", b"%ff=1", b"producer=a&producer=b"]
)
def test_a_query_that_is_not_utf8_or_ambiguous_is_refused(query):
    with pytest.raises(BadRequest):
        query_of(Request({"type": "http", "query_string": query, "headers": []}), ("producer", "batch"))


def test_a_query():
    found = query_of(Request({"type": "http", "query_string": b"producer=%c3%a9+a", "headers": []}), ("producer",))
    assert dict(found) == {"producer": "é a"}


def test_the_tags_of_a_read():
    assert has_tag('"a", "b"', '"b"')
    assert has_tag('W/"b"', '"b"')
    assert has_tag("*", '"b"')
    assert not has_tag('"a"', '"b"')
    assert not has_tag(None, '"b"')
