"""What a URL and a first message ask for, and which pages may ask."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import BadPosition
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace.model.position import Position, Positions
from tailrace_server.serving.tailing.request import (
    BadRequest,
    choose_subprotocol,
    origin_allowed,
    parse_first_message,
    parse_target,
)

POSITIONS = Positions(bytes(16), bytes(range(16)), {3: Position.at(FailoverLog([FailoverEntry(bytes(16), 1, 0)]), 5)})


def test_a_feed_alone_is_tailed_from_the_beginning():
    assert parse_target("/feeds/orders") == ("orders", "beginning", b"", False, False, None, False)


@pytest.mark.parametrize("since", ["beginning", "now", "last:100", "message"])
def test_where_to_begin(since):
    assert parse_target(f"/feeds/orders?since={since}&key_prefix=") == ("orders", since, b"", False, False, None, False)


def test_positions_in_the_url():
    assert parse_target(f"/feeds/orders?since={POSITIONS}").since == POSITIONS


@pytest.mark.parametrize("since", ["2026-11-21T10:00:00Z", "2026-11-21T11:00:00+01:00", "2026-11-21T11:00:00%2B01:00"])
def test_a_time_in_the_url(since):
    moment = datetime(2026, 11, 21, 10, tzinfo=UTC)
    assert parse_target(f"/feeds/orders?since={since}").since == moment
    assert parse_first_message(json.dumps({"since": "2026-11-21T10:00:00Z"})) == moment


@pytest.mark.parametrize("since", ["2026-11-21T10:00:00", "-15", "1"])
def test_times_that_are_none(since):
    with pytest.raises(BadRequest, match=r"since: .* (no time|no time zone)"):
        parse_target(f"/feeds/a?since={since}")


@given(st.binary())
def test_a_prefix_is_any_bytes(prefix):
    assert parse_target(f"/feeds/a?key_prefix={quote(prefix)}").key_prefix == prefix


@pytest.mark.parametrize(("text", "wanted"), [("true", True), ("false", False)])
def test_keys_only(text, wanted):
    assert parse_target(f"/feeds/a?keys_only={text}").keys_only is wanted


def test_a_plus_is_a_blank_as_browsers_write_it():
    assert parse_target("/feeds/a?key_prefix=a+b%2B").key_prefix == b"a b+"


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("/", "a feed is tailed at /feeds/NAME"),
        ("/feeds/", "a feed is tailed at"),
        ("/feeds/a/b", "a feed is tailed at"),
        ("/feeds/a%2Fb", "a feed is tailed at"),
        ("*", "a feed is tailed at"),
        ("/feeds/a?from=now", "no parameter 'from'"),
        ("/feeds/a?since=now&since=now", "'since' was given twice"),
        ("/feeds/a?since=", "since is empty"),
        ("/feeds/a?keys_only=1", "keys_only is '1', neither true nor false"),
        ("/feeds/a?keys_only=", "keys_only is '', neither"),
        ("/feeds/a?key_prefix=" + "a" * 4097, "key_prefix has 4097 bytes, a key at most 4096"),
    ],
)
def test_what_is_no_request(target, says):
    with pytest.raises(BadRequest, match=says):
        parse_target(target)


BROKEN_ESCAPES = [
    "%",
    "%%",
    "%z",
    "%zz",
    "%2",
    "%2g",
    "a%",
    "%41%4",
    "%+41",
    "%u0041",
    "%-1",
    "% 1",
    "%25%",
    "%\uff11\uff11",
]
PLACES = {
    "the path": "/feeds/{}",
    "since": "/feeds/a?since={}",
    "key_prefix": "/feeds/a?keys_only=true&key_prefix={}",
    "keys_only": "/feeds/a?keys_only={}",
}


@pytest.mark.parametrize("broken", BROKEN_ESCAPES)
@pytest.mark.parametrize("place", PLACES)
def test_broken_escapes_are_refused_in_every_place(place, broken):
    with pytest.raises(BadRequest, match=f"{place} has '%.*no percent-encoded byte"):
        parse_target(PLACES[place].format(broken))


@pytest.mark.parametrize("place", ["the path", "since", "keys_only"])
def test_text_is_utf_8(place):
    with pytest.raises(BadRequest, match=f"{place} is no UTF-8"):
        parse_target(PLACES[place].format("%ff"))


@given(st.sampled_from(list(PLACES)), st.text("%0aFgz+\u0663", max_size=8))
def test_no_place_takes_an_escape_for_itself(place, text):
    """What is accepted stands for the same bytes as the strictest decoder says."""
    try:
        found = parse_target(PLACES[place].format(text))
    except (BadRequest, BadPosition):
        return
    pieces = text.replace("+", " ").split("%")
    assert all(len(piece) >= 2 and set(piece[:2]) <= set("0aF") for piece in pieces[1:])
    if place == "key_prefix":
        rest = (bytes.fromhex(piece[:2]) + piece[2:].encode() for piece in pieces[1:])
        assert found.key_prefix == pieces[0].encode() + b"".join(rest)


@pytest.mark.parametrize("text", ["true", "tru%65", "%74%72%75%65"])
def test_every_parameter_may_be_percent_encoded(text):
    assert parse_target(f"/feeds/%61?keys_only={text}&since=%6eow&key_prefix=%61") == (
        "a",
        "now",
        b"a",
        True,
        False,
        None,
        False,
    )


@pytest.mark.parametrize("since", ["yesterday", "trp1.AAAA", str(POSITIONS)[:-1]])
def test_positions_that_are_none(since):
    with pytest.raises(BadPosition):
        parse_target(f"/feeds/a?since={since}")


@given(st.text())
def test_any_target_is_a_request_or_an_error_of_ours(text):
    with contextlib.suppress(BadRequest, BadPosition):
        parse_target(text)


def test_first_messages():
    assert parse_first_message('{"since": "now"}') == "now"
    assert parse_first_message(json.dumps({"since": str(POSITIONS)})) == POSITIONS
    with pytest.raises(BadPosition):
        parse_first_message('{"since": "message"}')


@pytest.mark.parametrize(
    "message",
    ["", "now", "[]", "{}", '{"since": 1}', '{"since": "now", "x": 1}', b"\xff", "[" * 100_000, '"since"'],
    ids=lambda message: repr(message[:20]),
)
def test_first_messages_that_are_none(message):
    with pytest.raises(BadRequest, match="the first message has to be"):
        parse_first_message(message)


def test_subprotocols():
    assert choose_subprotocol([]) is None
    assert choose_subprotocol(["x", "tailrace.json.v1"]) == "tailrace.json.v1"
    with pytest.raises(BadRequest, match=r"none of the subprotocols a, b is spoken here; tailrace\.json\.v1 is"):
        choose_subprotocol(["a", "b"])


@pytest.mark.parametrize(
    ("origin", "local_host", "listen_host", "allowed"),
    [
        (None, "127.0.0.1", "127.0.0.1", True),  # no browser
        ("http://localhost:3000", "127.0.0.1", "127.0.0.1", True),
        ("http://127.0.0.1:4780", "127.0.0.1", "0.0.0.0", True),
        ("https://[::1]:4780", "::1", "localhost", True),
        ("http://localhost", "::ffff:127.0.0.1", "::", True),
        ("http://10.0.0.5:4780", "10.0.0.5", "0.0.0.0", True),
        ("http://node1:4780", "10.0.0.5", "node1", True),
        ("http://NODE1", "10.0.0.5", "Node1", True),
        ("http://localhost", "10.0.0.5", "0.0.0.0", False),  # a page of the client's machine, not of the node's
        ("http://evil.example", "127.0.0.1", "127.0.0.1", False),
        ("http://evil.example:4790", "127.0.0.1", "127.0.0.1", False),  # a name that its owner lets resolve to us
        ("http://localhost.evil.example", "127.0.0.1", "127.0.0.1", False),
        ("http://127.0.0.1.evil.example", "127.0.0.1", "127.0.0.1", False),
        ("http://10.0.0.6", "10.0.0.5", "0.0.0.0", False),
        ("null", "127.0.0.1", "127.0.0.1", False),  # sandboxed frames of any page
        ("", "127.0.0.1", "127.0.0.1", False),
        ("file://", "127.0.0.1", "127.0.0.1", False),
        ("chrome-extension://localhost", "127.0.0.1", "127.0.0.1", False),
        ("http://[", "127.0.0.1", "127.0.0.1", False),
    ],
)
def test_origins(origin, local_host, listen_host, allowed):
    assert origin_allowed(origin, local_host, listen_host, ()) is allowed


def test_origins_that_were_named():
    named = {"https://app.example.org"}
    assert origin_allowed("https://app.example.org", "10.0.0.5", "0.0.0.0", named)
    assert not origin_allowed("http://app.example.org", "10.0.0.5", "0.0.0.0", named)
    assert not origin_allowed("https://app.example.org:444", "10.0.0.5", "0.0.0.0", named)
    assert origin_allowed("null", "10.0.0.5", "0.0.0.0", {"*"})


@given(st.text())
def test_any_origin_is_decided(origin):
    assert origin_allowed(origin, "10.0.0.5", "0.0.0.0", ()) in (True, False)
