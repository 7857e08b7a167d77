"""Filters as they travel."""

import pytest

from tailrace.errors import ProtocolError
from tailrace.wire.filters import EVERYTHING, StreamFilter


@pytest.mark.parametrize("wanted", [EVERYTHING, StreamFilter(b"order/"), StreamFilter(b"\xff" * 4096, True)])
def test_a_filter_comes_out_as_it_went_in(wanted):
    wanted.check()
    assert StreamFilter.from_json(wanted.to_json(), "X") == wanted


@pytest.mark.parametrize("value", [None, {}, {"keys_only": False}, {"key_prefix": ""}])
def test_what_leaves_nothing_out_is_everything(value):
    assert StreamFilter.from_json(value, "X") == EVERYTHING


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ([], "'filter' is not an object"),
        ("ff", "'filter' is not an object"),
        (False, "'filter' is not an object"),
        ({"key_prefix": "f"}, "not bytes in hex"),
        ({"key_prefix": "ü"}, "not bytes in hex"),
        ({"key_prefix": 7}, "not bytes in hex"),
        ({"key_prefix": None}, "not bytes in hex"),
        ({"key_prefix": "ff" * 4097}, "4097 bytes, a key at most 4096"),
        ({"keys_only": 1}, "neither true nor false"),
        ({"keys_only": None}, "neither true nor false"),
    ],
)
def test_what_is_no_filter_is_refused(value, match):
    with pytest.raises(ProtocolError, match=f"X: .*{match}"):
        StreamFilter.from_json(value, "X")


def test_members_that_are_not_known_are_kept_by_name_and_bounded():
    assert StreamFilter.from_json({"value_regex": "x", "keys_only": True}, "X").unknown == ("value_regex",)
    many = StreamFilter.from_json({f"{number:100}": 0 for number in range(100)}, "X").unknown
    assert (len(many), len(many[0])) == (8, 40)


@pytest.mark.parametrize(
    ("wanted", "kind", "match"),
    [
        (StreamFilter("text"), TypeError, r"use \.encode\(\)"),
        (StreamFilter(b"", 1), TypeError, "True or False"),
        (StreamFilter(bytes(4097)), ValueError, "4097 bytes"),
    ],
)
def test_a_program_is_told_what_no_node_would_take(wanted, kind, match):
    with pytest.raises(kind, match=match):
        wanted.check()
