"""Parses a request: its feed and key, its level, and the condition of a write. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple, cast
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request

from tailrace.block import KEY_BYTES_MAX
from tailrace.model import Level, LevelName, Version
from tailrace_server.serving.board.pages import BadRequest, NotFound
from tailrace_server.serving.tailing.request import (
    TailRequest,
    parse_filter,
    parse_query,
    parse_since,
    unescape,
    unescape_text,
)
from tailrace_server.serving.web.versions import parse_version

EVENTS_PARAMETERS = ("since", "until", "key_prefix", "keys_only", "partitions")
# At most 256 numbers of partitions, each once or more.
_PARTITIONS = re.compile(r"[0-9]{1,6}(,[0-9]{1,6}){0,255}")
_SECONDS = re.compile("[0-9]{1,10}")
_FLAGS = {"true": True, "false": False}
# A list of entity tags, or a weak one, names no single version.
_ONE_TAG = "one version in quotes, as an ETag has it, or *"


class Condition(NamedTuple):
    """The condition of a write. At most one member is set.

    Attributes:
        version: Write only if this is the current version of the key.
        absent: Write only if the key does not exist.
        present: Write only if the key exists.
    """

    version: Version | None = None
    absent: bool = False
    present: bool = False


def feed_and_key(raw_path: bytes) -> tuple[str, bytes]:
    """Returns the feed and the key of ``/feeds/FEED/keys/KEY``, decoded from the bytes of the path.

    Raises BadRequest for a broken escape, NotFound for another path: an escaped slash may have led here.
    """
    parts = raw_path.decode("latin-1").split("/", 4)
    if len(parts) < 5 or parts[3] != "keys":
        raise NotFound("there is nothing at this path: a slash in the name of a feed is no part of it")
    key = unescape("the key", parts[4])
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise BadRequest(f"the key has {len(key)} bytes, and a key has 1 to {KEY_BYTES_MAX}")
    return feed_of(raw_path), key


def feed_of(raw_path: bytes) -> str:
    """Returns the feed of ``/feeds/FEED/...``, decoded from the bytes of the path. Raises BadRequest."""
    return unescape_text("the feed", raw_path.decode("latin-1").split("/", 3)[2])


def query_of(request: Request, names: Collection[str]) -> QueryParams:
    """Returns the query of a request: no other parameters than ``names``, and each once. Raises BadRequest."""
    query = request.query_params
    try:
        # Starlette has put the same character in place of all that is not UTF-8. So two producers could have one name.
        unquote_to_bytes(request.scope["query_string"]).decode()
    except UnicodeDecodeError:
        raise BadRequest("the query is not UTF-8: percent-encode the UTF-8 of a text") from None
    if len(query) != len(query.multi_items()):
        raise BadRequest("a parameter was given twice")
    for name in query:
        if name not in names:
            raise BadRequest(f"there is no parameter {name!r:.100}: {', '.join(names)} are known here")
    return query


def level_of(query: Mapping[str, str]) -> LevelName | None:
    """Returns the level that a query asks for; None without one. Raises BadRequest."""
    text = query.get("level")
    if text is None:
        return None
    try:
        return cast(LevelName, Level.parse(text).name.lower())
    except ValueError as error:
        raise BadRequest(str(error)) from None


def seconds_of(query: Mapping[str, str], name: str) -> int | None:
    """Returns the whole seconds of a parameter; None without it. Raises BadRequest. The SDK checks the bounds."""
    text = query.get(name)
    if text is not None and not _SECONDS.fullmatch(text):
        raise BadRequest(f"{name} is {text!r:.100}, and has to be a number of seconds")
    return None if text is None else int(text)


def flag_of(query: Mapping[str, str], name: str) -> bool:
    """Returns whether a query has ``name=true``. Raises BadRequest for another value than true and false."""
    text = query.get(name, "false")
    if text not in _FLAGS:
        raise BadRequest(f"{name} is {text!r:.100}, neither true nor false")
    return _FLAGS[text]


def version_of(query: Mapping[str, str], name: str) -> Version | None:
    """Returns the version of a parameter; None without it. Raises BadRequest."""
    text = query.get(name)
    return None if text is None else parse_version(name, text)


def condition_of(headers: Headers, query: Mapping[str, str]) -> Condition:
    """Returns the condition of a write, from ``If-Match``, ``If-None-Match`` or the query. Raises BadRequest."""
    found = [
        *map(_of_match, headers.getlist("if-match")),
        *map(_of_none_match, headers.getlist("if-none-match")),
        *_of_query(query),
    ]
    if len(found) > 1:
        raise BadRequest(
            "a write has one condition: give one of If-Match, If-None-Match, if_version, if_absent and if_present"
        )
    return found[0] if found else Condition()


def _of_match(header: str) -> Condition:
    return Condition(present=True) if header.strip() == "*" else Condition(_tagged("If-Match", header))


def _of_none_match(header: str) -> Condition:
    if header.strip() != "*":
        raise BadRequest(f"If-None-Match is {header!r:.100}, and a write takes * alone: only if the key does not exist")
    return Condition(absent=True)


def _of_query(query: Mapping[str, str]) -> list[Condition]:
    version = version_of(query, "if_version")
    found = [] if version is None else [Condition(version)]
    found += [Condition(absent=True)] if flag_of(query, "if_absent") else []
    return found + ([Condition(present=True)] if flag_of(query, "if_present") else [])


def _tagged(what: str, header: str) -> Version:
    text = header.strip()
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        raise BadRequest(f"{what} is {header!r:.100}, and has to be {_ONE_TAG}")
    return parse_version(what, text[1:-1])


def parse_events(feed: str, query: str, last_id: str | None) -> TailRequest:
    """Returns the stream of events that is asked for. Raises BadRequest, BadPosition.

    ``last_id``: the id of the last event that the client has handled. It counts in place of ``since``: a browser that
    connects again sends it with the URL of the first time.
    """
    parameters = parse_query(query, EVENTS_PARAMETERS)
    since = last_id or unescape_text("since", parameters.get("since", "beginning"))
    prefix, keys_only = parse_filter(parameters)
    partitions = parameters.get("partitions")
    only = None if partitions is None else _partitions(unescape_text("partitions", partitions))
    until = parameters.get("until")
    if until not in (None, "now"):
        raise BadRequest(f"until is {until!r:.100}, and can be now: the stream ends with all that is there now")
    return TailRequest(feed, parse_since(since), prefix, keys_only, partitions=only, ends=until == "now")


def _partitions(text: str) -> frozenset[int]:
    """Returns the partitions in ``0,3,7``. Raises BadRequest."""
    if not _PARTITIONS.fullmatch(text):
        raise BadRequest(f"partitions is {text!r:.100}, and has to be numbers with commas between them, such as 0,3")
    return frozenset(map(int, text.split(",")))


def has_tag(header: str | None, tag: str) -> bool:
    """Returns whether ``If-None-Match`` of a read names this entity tag, or any."""
    if header is None:
        return False
    tags = [each.strip().removeprefix("W/") for each in header.split(",")]
    return tag in tags or tags == ["*"]
