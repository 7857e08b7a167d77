"""The OpenAPI document of the feeds over HTTP, from which tools make clients. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from tailrace import _version
from tailrace.block import KEY_BYTES_MAX, VALUE_BYTES_MAX
from tailrace_server.serving.web.rows import BODY_BYTES_MAX, ROWS_MAX

Json: TypeAlias = dict[str, Any]

PATH = "/openapi.json"
_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_FLAG: Json = {"type": "boolean", "default": False}
_BASE64: Json = {"type": "string", "const": "base64"}


def _schema(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: Mapping[str, Json], optional: tuple[str, ...] = ()) -> Json:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required}


_SCHEMAS: dict[str, Json] = {
    "Written": _object({"version": _schema("Version"), "partition": _COUNT, "seq": _COUNT}),
    "Feed": {
        "type": "object",
        "properties": {
            "name": _TEXT,
            "feed_id": _TEXT,
            "partitions": _COUNT,
            "retention": {"type": "string", "enum": ["compact", "history"]},
        },
        "required": ["name", "feed_id", "partitions", "retention"],
        "additionalProperties": True,
        "description": "A feed with its settings, as `tailrace feed list --json` shows it.",
    },
    "Feeds": _object({"feeds": {"type": "array", "items": _schema("Feed")}}),
    "Version": {
        "type": "string",
        "pattern": "^[0-9]+-[0-9a-f]{32}-[0-9]+$",
        "description": "The name of one mutation, for ever: its partition, the branch of its history, and its seq.",
    },
    "Row": {
        **_object(
            {
                "key": _TEXT,
                "key_encoding": _BASE64,
                "value": {"description": "A string, or any JSON, which is stored as JSON. Null for a deletion."},
                "value_encoding": _BASE64,
                "deleted": _FLAG,
                "ttl": {"type": "integer", "minimum": 1},
            },
            ("key_encoding", "value", "value_encoding", "deleted", "ttl"),
        ),
        "description": "A change of one key. Keys and values that are not UTF-8 are base64.",
    },
    "RowsWritten": _object(
        {
            "rows": _COUNT,
            "written": {"type": "array", "items": _schema("VersionRange")},
            "present": {
                "type": "array",
                "items": _COUNT,
                "description": "Of a batch of a producer: the partitions that had it already.",
            },
        },
        ("present",),
    ),
    "VersionRange": _object({"partition": _COUNT, "branch": _TEXT, "first_seq": _COUNT, "last_seq": _COUNT}),
    "Error": _object(
        {
            "error": {"type": "string", "description": "The type of the error, as in the SDK for Python."},
            "message": _TEXT,
            "current": {
                "type": ["string", "null"],
                "description": "Of a VersionConflict: the version of the key; null if the key does not exist.",
            },
            "first_batch": {**_COUNT, "description": "Of a BatchBehind: the first number that is free."},
        },
        ("current", "first_batch"),
    ),
}

_ERRORS = {
    400: "The request is wrong; the message says how.",
    401: "The node requires a token, and this one does not count.",
    403: "The token may not do this, or the page is of another site.",
    404: "The feed or the key does not exist.",
    409: "The version belongs to a history that was dropped, or the number of the batch was used.",
    410: "The mutations that are asked for are gone.",
    412: "The condition does not hold, and nothing was written.",
    408: "No more of the body came for 15 s.",
    413: "The body is too long.",
    415: "The body is compressed.",
    503: "Ask again later: nothing was written, or to repeat it is safe.",
    504: "The outcome of the write is not known.",
}


def _headers(*names: str) -> Json:
    return {name: {"schema": _TEXT} for name in names}


def _errors(*codes: int) -> Json:
    """Returns the responses with these codes, and those that each request may have."""
    found: Json = {}
    for code in sorted({400, 401, 403, 404, 503, *codes}):
        found[str(code)] = {
            "description": _ERRORS[code],
            "content": {"application/json": {"schema": _schema("Error")}},
        }
    found["503"]["headers"] = {"Retry-After": {"schema": _COUNT, "description": "Seconds."}}
    if "412" in found:
        found["412"]["headers"] = _headers("ETag")
    return found


def _json_response(description: str, schema: str, *headers: str) -> Json:
    response: Json = {"description": description, "content": {"application/json": {"schema": _schema(schema)}}}
    return response | ({"headers": _headers(*headers)} if headers else {})


def _query(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _header(name: str, description: str) -> Json:
    return {"name": name, "in": "header", "schema": _TEXT, "description": description}


_FEED: Json = {"name": "feed", "in": "path", "required": True, "schema": _TEXT, "description": "The name of the feed."}
_KEY: Json = {
    "name": "key",
    "in": "path",
    "required": True,
    "schema": _TEXT,
    "description": f"The key, percent-encoded bytes, 1 to {KEY_BYTES_MAX}. A slash may stay as it is.",
}
_LEVEL = _query(
    "level",
    {"type": "string", "enum": ["memory", "disk", "quorum"]},
    "The level that a write has reached when it is answered, by default that of the feed; or that a read asks for.",
)
_IF_VERSION = _query("if_version", _schema("Version"), "Write only if this is the current version of the key.")
_BYTES: Json = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def _key_paths() -> Json:
    written = _json_response("The version of the write.", "Written", "ETag")
    return {
        "parameters": [_FEED, _KEY],
        "get": {
            "operationId": "getKey",
            "summary": "Read the value of a key",
            "parameters": [
                _LEVEL,
                _query("at_least", _schema("Version"), "Answer once the node has this version of the same partition."),
                _header("If-None-Match", "Answer 304 if the key has this version."),
            ],
            "responses": {
                "200": {
                    "description": "The value.",
                    "content": _BYTES,
                    "headers": _headers("ETag", "Tailrace-Partition", "Tailrace-Seq", "Tailrace-Timestamp"),
                },
                "304": {"description": "The key has not changed."},
                **_errors(409, 504),
            },
        },
        "put": {
            "operationId": "putKey",
            "summary": "Set the value of a key",
            "parameters": [
                _LEVEL,
                _IF_VERSION,
                _query("if_absent", _FLAG, "Write only if the key does not exist."),
                _query("ttl", {"type": "integer", "minimum": 1}, "The seconds after which the key expires."),
                _header("If-Match", "As if_version: an ETag."),
                _header("If-None-Match", "*: as if_absent."),
            ],
            "requestBody": {
                "description": f"The value, at most {VALUE_BYTES_MAX} bytes.",
                "required": True,
                "content": _BYTES,
            },
            "responses": {"200": written, **_errors(408, 409, 412, 413, 504)},
        },
        "delete": {
            "operationId": "deleteKey",
            "summary": "Delete a key",
            "parameters": [
                _LEVEL,
                _IF_VERSION,
                _query("if_present", _FLAG, "Write only if the key exists."),
                _header("If-Match", "As if_version: an ETag; or *: as if_present."),
            ],
            "responses": {"200": written, **_errors(409, 412, 504)},
        },
    }


def _rows_path() -> Json:
    return {
        "parameters": [_FEED],
        "put": {
            "operationId": "createFeed",
            "summary": "Make a feed, unless it exists with these settings",
            "requestBody": {
                "description": "The settings; those that are missing have their defaults.",
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            "responses": {"200": _json_response("The feed.", "Feed"), **_errors(408, 409, 413, 504)},
        },
        "post": {
            "operationId": "postRows",
            "summary": "Write several rows",
            "parameters": [
                _LEVEL,
                _query("producer", _TEXT, "The name of the program, with batch: each batch is written once."),
                _query("batch", _COUNT, "The number of the batch. The numbers of a producer rise."),
            ],
            "requestBody": {
                "description": f"JSON lines, each a Row: at most {ROWS_MAX}, and {BODY_BYTES_MAX} bytes.",
                "required": True,
                "content": {"application/x-ndjson": {"schema": _schema("Row")}},
            },
            "responses": {
                "200": _json_response("The versions of the rows, by partition.", "RowsWritten"),
                **_errors(408, 409, 413, 415, 504),
            },
        },
    }


def _events_path() -> Json:
    return {
        "parameters": [_FEED],
        "get": {
            "operationId": "getEvents",
            "summary": "Follow a feed as server-sent events, a snapshot first and then live",
            "parameters": [
                _query("since", _TEXT, "beginning (the default), now, the id of an event, last:N, or a time."),
                _query("until", {"type": "string", "enum": ["now"]}, "End with all that is there at the beginning."),
                _query("key_prefix", _TEXT, "Only keys that begin with these percent-encoded bytes."),
                _query("keys_only", _FLAG, "Send no values."),
                _query("partitions", _TEXT, "Only these partitions, with commas between them."),
                _header("Last-Event-ID", "The id of the last event that was handled. It counts in place of since."),
            ],
            "responses": {
                "200": {
                    "description": "Events, without an end unless until is given. Their data are JSON.",
                    "content": {"text/event-stream": {"schema": _TEXT}},
                },
                **_errors(410),
            },
        },
    }


def document() -> Json:
    """Returns the document. It is the same for all nodes of a version, with tokens or without."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tailrace",
            "version": _version.__version__,
            "description": "Feeds of keyed data: writes, reads, changes as they come. docs/guides/http.md explains.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}],
        "paths": {
            "/feeds": {
                "get": {
                    "operationId": "getFeeds",
                    "summary": "List the feeds that the token may use",
                    "responses": {"200": _json_response("The feeds.", "Feeds"), **_errors()},
                }
            },
            "/feeds/{feed}/keys/{key}": _key_paths(),
            "/feeds/{feed}": _rows_path(),
            "/feeds/{feed}/events": _events_path(),
        },
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
