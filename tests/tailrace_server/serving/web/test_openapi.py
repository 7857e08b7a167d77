"""The OpenAPI document says what the node answers."""

import json
import re
from pathlib import Path

import pytest
from starlette.routing import Route

from tailrace_server.serving.web import rows
from tailrace_server.serving.web.api import FeedsApi
from tailrace_server.serving.web.bodies import BODIES_BYTES_MAX
from tailrace_server.serving.web.events import EVENTS_MAX
from tailrace_server.serving.web.openapi import PATH, document
from tailrace_server.serving.web.request import EVENTS_PARAMETERS
from tailrace_server.serving.web.values import VALUES_BYTES_MAX

DOCUMENT = document()
PATHS = DOCUMENT["paths"]
_METHODS = {"get", "put", "post", "delete"}
_TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
_KEYWORDS = {
    "$ref",
    "additionalProperties",
    "const",
    "default",
    "description",
    "enum",
    "format",
    "items",
    "minimum",
    "pattern",
    "properties",
    "required",
    "type",
}


def resolved(schema):
    """A schema, or the one that it refers to."""
    if "$ref" not in schema:
        return schema
    found = DOCUMENT
    for name in schema["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return found


def check(value, schema):
    """Fails unless the value has the schema. It knows the keywords that the document uses."""
    schema = resolved(schema)
    assert schema.keys() <= _KEYWORDS
    types = schema.get("type", list(_TYPES))
    assert isinstance(value, tuple(_TYPES[name] for name in ([types] if isinstance(types, str) else types)))
    assert value >= schema.get("minimum", value) if "minimum" in schema else True
    assert re.search(schema.get("pattern", ""), value) if "pattern" in schema else True
    if isinstance(value, dict):
        assert set(schema.get("required", ())) <= value.keys()
        assert value.keys() <= schema["properties"].keys() or schema.get("additionalProperties")
        for name in value.keys() & schema["properties"].keys():
            check(value[name], schema["properties"][name])
    if isinstance(value, list):
        for member in value:
            check(member, schema["items"])


def operations():
    return [(path, method, item[method]) for path, item in PATHS.items() for method in _METHODS & item.keys()]


def schemas(part):
    """All schemas below a part of the document."""
    if isinstance(part, dict):
        if "schema" in part:
            yield part["schema"]
        for member in part.values():
            yield from schemas(member)
    elif isinstance(part, list):
        for member in part:
            yield from schemas(member)


def test_each_route_with_each_method_is_described():
    made = {}
    for route in FeedsApi(None, None).routes():
        assert isinstance(route, Route)
        if route.path != PATH:
            made[route.path.replace(":any_text", "")] = {method.lower() for method in route.methods} - {"head"}
    assert made == {path: _METHODS & item.keys() for path, item in PATHS.items()}


def test_the_document_has_the_form_of_openapi():
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert {"title", "version"} <= DOCUMENT["info"].keys()
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT
    ids = [operation["operationId"] for *_, operation in operations()]
    assert len(set(ids)) == len(ids)
    for path, _, operation in operations():
        parameters = operation.get("parameters", []) + PATHS[path].get("parameters", [])
        named = [(each["in"], each["name"]) for each in parameters]
        assert len(set(named)) == len(named)
        assert {name for place, name in named if place == "path"} == set(re.findall(r"\{(\w+)\}", path))
        assert all(each["required"] for each in parameters if each["in"] == "path")
        assert all(each["description"] for each in operation["responses"].values())
        assert "200" in operation["responses"]
    for schema in [*schemas(PATHS), *DOCUMENT["components"]["schemas"].values()]:
        assert resolved(schema).keys() <= _KEYWORDS


@pytest.mark.parametrize(
    ("path", "method", "known"),
    [
        ("/feeds/{feed}/events", "get", EVENTS_PARAMETERS),
        ("/feeds/{feed}", "post", rows._PARAMETERS),
        ("/feeds/{feed}/keys/{key}", "get", ("level", "at_least")),
        ("/feeds/{feed}/keys/{key}", "put", ("level", "if_version", "if_absent", "ttl")),
        ("/feeds/{feed}/keys/{key}", "delete", ("level", "if_version", "if_present")),
    ],
)
def test_all_parameters_are_described(path, method, known):
    told = {each["name"] for each in PATHS[path][method]["parameters"] if each["in"] == "query"}
    assert told == set(known)


def test_the_reference_has_the_same():
    page = (Path(__file__).parents[4] / "docs" / "reference" / "http.md").read_text()
    told = {}
    for request, _, parameters, headers, codes in re.findall(
        r"^\| `(\w+ /.*?)` \|" + 4 * r" (.*?) ?\|", page, re.MULTILINE
    ):
        told[request] = (re.findall(r"`(.*?)`", parameters), re.findall(r"`(.*?)`", headers), codes.split(", "))
    described = {}
    for path, method, operation in operations():
        named = [
            [p["name"] for p in operation.get("parameters", []) if p["in"] == place] for place in ("query", "header")
        ]
        described[f"{method.upper()} {path}"] = (*named, list(operation["responses"]))
    assert told == described
    assert f"{BODIES_BYTES_MAX >> 20} MiB; then 503" in page
    assert f"| streams of events | {EVENTS_MAX}; then 503 |" in page
    told_rows = f"{rows.ROWS_MAX:,}, {rows.BODY_BYTES_MAX >> 20} MiB; with empty lines {rows.LINES_MAX:,} lines"
    assert f"| rows of a request | {told_rows} |" in page
    assert f"| values of all answers that clients have not taken yet | {VALUES_BYTES_MAX >> 20} MiB; then 503 |" in page


async def test_answers_are_as_described(web, orders):
    row = json.dumps({"key": "b", "value": "1"}).encode()
    key, feed = "/feeds/{feed}/keys/{key}", "/feeds/{feed}"
    cases = (
        ("/feeds", "GET", "/feeds", b"", {}),
        (feed, "PUT", "/feeds/new", b'{"partitions": 3}', {}),
        (feed, "PUT", "/feeds/orders", b'{"partitions": 3}', {}),
        (feed, "PUT", "/feeds/orders", b"x", {}),
        (key, "PUT", "/feeds/orders/keys/a", b"1", {}),
        (key, "PUT", "/feeds/orders/keys/a", b"1", {"if_none_match": "*"}),
        (key, "GET", "/feeds/orders/keys/a", b"", {}),
        (key, "GET", "/feeds/orders/keys/none", b"", {}),
        (key, "GET", "/feeds/orders/keys/none?level=x", b"", {}),
        (key, "DELETE", "/feeds/orders/keys/a", b"", {}),
        (key, "DELETE", "/feeds/orders/keys/a", b"", {"if_match": "*"}),
        (key, "PUT", "/feeds/orders/keys/a", b"", {"content_length": str(10**9)}),
        (feed, "POST", "/feeds/orders", row, {}),
        (feed, "POST", "/feeds/orders?producer=a&batch=1", row, {}),
        (feed, "POST", "/feeds/orders?producer=a&batch=1", row, {}),
        (feed, "POST", "/feeds/orders?producer=a&batch=0", row, {}),
        (feed, "POST", "/feeds/orders", row, {"content_encoding": "gzip"}),
        (feed, "POST", "/feeds/orders", b"x", {}),
        ("/feeds/{feed}/events", "GET", "/feeds/none/events", b"", {}),
    )
    for path, method, target, body, headers in cases:
        answer = await web(method, target, body, **headers)
        told = PATHS[path][method.lower()]["responses"][str(answer.code)]
        media_type = answer.headers["content-type"].partition(";")[0]
        schema = told["content"][media_type]["schema"]
        if media_type == "application/json":
            check(answer.json, schema)
        if answer.code == 200:
            assert {name.lower() for name in told.get("headers", ())} <= answer.headers.keys()


async def test_the_document_is_served_to_all(web):
    answer = await web("GET", PATH, origin="https://editor.example")
    assert (answer.code, answer.json) == (200, DOCUMENT)
    assert answer.headers["access-control-allow-origin"] == "*"
