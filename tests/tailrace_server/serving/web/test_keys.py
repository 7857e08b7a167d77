"""PUT, GET and DELETE of keys over HTTP."""

import pytest

import tailrace
from tailrace.block import VALUE_BYTES_MAX
from tailrace_server.serving.console import listener


async def test_a_key_is_put_read_and_deleted(web, orders):
    put = await web("PUT", "/feeds/orders/keys/k-1", b"\x00v\xff")
    assert (put.code, put.headers["etag"]) == (200, f'"{put.json["version"]}"')
    got = await web("GET", "/feeds/orders/keys/k-1")
    assert (got.code, got.body, got.headers["etag"]) == (200, b"\x00v\xff", put.headers["etag"])
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["tailrace-seq"] == str(put.json["seq"])
    item = await orders.get(b"k-1")
    assert (item.value, str(item.timestamp)) == (b"\x00v\xff", got.headers["tailrace-timestamp"])
    assert (await web("DELETE", "/feeds/orders/keys/k-1")).code == 200
    gone = await web("GET", "/feeds/orders/keys/k-1")
    assert (gone.code, gone.json["error"]) == (404, "NoSuchKey")
    assert await orders.get(b"k-1") is None


async def test_an_empty_value_is_a_value(web, orders):
    await web("PUT", "/feeds/orders/keys/k")
    got = await web("GET", "/feeds/orders/keys/k")
    assert (got.code, got.body) == (200, b"")


@pytest.mark.parametrize(
    ("escaped", "key"),
    [("a/b//c", b"a/b//c"), ("%2F", b"/"), ("%ff%00%0a", b"\xff\x00\n"), ("a+b%20c", b"a+b c"), ("%2e%2e", b"..")],
)
async def test_any_bytes_may_be_a_key(web, orders, escaped, key):
    assert (await web("PUT", f"/feeds/orders/keys/{escaped}", b"v")).code == 200
    assert (await orders.get(key)).value == b"v"
    assert (await web("GET", f"/feeds/orders/keys/{escaped}")).body == b"v"


async def test_a_put_with_the_version_of_a_key(web, orders):
    first = await web("PUT", "/feeds/orders/keys/k", b"1")
    tag = first.headers["etag"]
    second = await web("PUT", "/feeds/orders/keys/k", b"2", if_match=tag)
    assert second.code == 200
    refused = await web("PUT", "/feeds/orders/keys/k", b"3", if_match=tag)
    assert (refused.code, refused.json["error"]) == (412, "VersionConflict")
    assert refused.headers["etag"] == second.headers["etag"] == f'"{refused.json["current"]}"'
    by_query = await web("PUT", f"/feeds/orders/keys/k?if_version={second.json['version']}", b"3")
    assert by_query.code == 200
    assert (await orders.get(b"k")).value == b"3"


async def test_a_part_of_a_value_does_not_take_the_place_of_the_whole(web, orders):
    """As ``curl --continue-at`` sends the rest of a file."""
    await web("PUT", "/feeds/orders/keys/k", b"whole")
    refused = await web("PUT", "/feeds/orders/keys/k", b"le", content_range="bytes 3-4/5")
    assert (refused.code, refused.json["error"]) == (400, "BadRequest")
    assert (await orders.get(b"k")).value == b"whole"


async def test_a_put_of_a_key_that_must_not_exist(web, orders):
    assert (await web("PUT", "/feeds/orders/keys/k", b"1", if_none_match="*")).code == 200
    assert (await web("PUT", "/feeds/orders/keys/k", b"2", if_none_match="*")).code == 412
    assert (await web("PUT", "/feeds/orders/keys/k?if_absent=true", b"2")).code == 412
    assert (await web("PUT", "/feeds/orders/keys/other?if_absent=true", b"2")).code == 200
    assert (await orders.get(b"k")).value == b"1"


async def test_a_deletion_with_a_condition(web, orders):
    put = await web("PUT", "/feeds/orders/keys/k", b"1")
    await web("PUT", "/feeds/orders/keys/k", b"2")
    assert (await web("DELETE", "/feeds/orders/keys/k", if_match=put.headers["etag"])).code == 412
    assert (await web("DELETE", "/feeds/orders/keys/k", if_match="*")).code == 200
    absent = await web("DELETE", "/feeds/orders/keys/k?if_present=true")
    assert (absent.code, absent.json["error"]) == (412, "Absent")


async def test_a_read_is_not_repeated_for_one_who_has_it(web, orders):
    put = await web("PUT", "/feeds/orders/keys/k", b"1")
    got = await web("GET", "/feeds/orders/keys/k", if_none_match=f'"x", {put.headers["etag"]}')
    assert (got.code, got.body) == (304, b"")
    assert (await web("GET", "/feeds/orders/keys/k", if_none_match='"x"')).code == 200


async def test_a_read_after_a_version(web, orders):
    put = await web("PUT", "/feeds/orders/keys/k", b"1", if_none_match="*")
    got = await web("GET", f"/feeds/orders/keys/k?at_least={put.json['version']}")
    assert got.body == b"1"
    lost = put.json["version"].replace(put.json["version"].split("-")[1], "0" * 32)
    assert (await web("GET", f"/feeds/orders/keys/k?at_least={lost}")).code == 409


async def test_levels(web, orders):
    for level in ("memory", "disk"):
        assert (await web("PUT", f"/feeds/orders/keys/k?level={level}", b"1")).code == 200
    assert (await web("GET", "/feeds/orders/keys/k?level=memory")).code == 200


@pytest.mark.parametrize(
    ("method", "path", "headers", "says"),
    [
        ("PUT", "k?level=all", {}, "level 'all' is none of"),
        ("PUT", "k?nonsense=1", {}, "there is no parameter 'nonsense'"),
        ("PUT", "k?level=disk&level=disk", {}, "a parameter was given twice"),
        ("PUT", "k?if_version=1", {}, "if_version is '1', and a version is"),
        ("PUT", "k?ttl=x", {}, "ttl is 'x', and has to be a number of seconds"),
        ("PUT", "k?ttl=0", {}, "ttl is 0"),
        ("PUT", "k?if_absent=1", {}, "if_absent is '1', neither true nor false"),
        ("PUT", "k?if_absent=true", {"if_none_match": "*"}, "a write has one condition"),
        ("PUT", "k", {"if_match": "*"}, "no condition that the key exists"),
        ("PUT", "k", {"if_match": 'W/"1-0-1"'}, "If-Match is"),
        ("PUT", "k", {"if_none_match": '"a"'}, "If-None-Match is"),
        ("PUT", "%zz", {}, "the key has '%zz'"),
        ("PUT", "k" * 4097, {}, "the key has 4097 bytes"),
        ("DELETE", "k", {"if_none_match": "*"}, "no condition that the key does not exist"),
        ("GET", "k?if_absent=true", {}, "there is no parameter 'if_absent'"),
    ],
)
async def test_what_is_wrong_is_said(web, orders, method, path, headers, says):
    answer = await web(method, f"/feeds/orders/keys/{path}", **headers)
    assert (answer.code, answer.json["error"]) == (400, "BadRequest")
    assert says in answer.json["message"]
    assert await orders.get(b"k") is None


async def test_a_version_of_another_partition_is_refused(web, orders):
    put = await web("PUT", "/feeds/orders/keys/k", b"1")
    other = f"{1 - put.json['partition']}{put.json['version'][1:]}"
    answer = await web("PUT", f"/feeds/orders/keys/k?if_version={other}", b"2")
    assert (answer.code, "the version is of" in answer.json["message"]) == (400, True)


async def test_a_feed_that_does_not_exist(web, running):
    for method in ("GET", "PUT", "DELETE"):
        answer = await web(method, "/feeds/none/keys/k")
        assert (answer.code, answer.json["error"]) == (404, "UnknownFeed")
    assert (await web("GET", "/feeds/a%2Fb/keys/k")).code == 404
    assert (await web("GET", "/feeds/orders%2Fkeys/keys/k")).code == 404


async def test_a_feed_that_was_dropped_and_made_again(web, client, orders):
    await web("PUT", "/feeds/orders/keys/k", b"1")
    await client.drop_feed("orders")
    made = await client.create_feed("orders", partitions=5)
    assert (await web("PUT", "/feeds/orders/keys/k", b"2")).code == 200
    assert (await made.get(b"k")).value == b"2"


async def test_a_value_that_is_too_long_is_refused_unread(web, orders):
    """Nothing of the body is sent, and the answer comes."""
    length = str(VALUE_BYTES_MAX + 1)
    answer = await web("PUT", "/feeds/orders/keys/k", content_length=length)
    assert (answer.code, answer.json["error"]) == (413, "TooLarge")


async def test_a_body_without_a_length_is_bounded_as_it_comes(web, orders, monkeypatch):
    monkeypatch.setattr("tailrace_server.serving.web.keys.VALUE_BYTES_MAX", 5)
    for body, code in ((b"12345", 200), (b"123456", 413)):
        chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        head = b"PUT /feeds/orders/keys/k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert await web.raw(head + chunked) == code


async def test_a_body_that_does_not_come_is_told_so(web, orders, monkeypatch):
    monkeypatch.setattr(listener, "READ_SECONDS_MAX", 0.1)
    async with web.opened("PUT", "/feeds/orders/keys/k", content_length="5") as reader:
        answer = await reader.answer()
    assert (answer.code, answer.json["error"]) == (408, "BodyTimeout")
    assert await orders.get(b"k") is None


async def test_a_client_that_sends_the_value_all_the_same_reads_why_it_is_refused(web, orders):
    answer = await web("PUT", "/feeds/orders/keys/k", bytes(VALUE_BYTES_MAX + 1))
    assert (answer.code, answer.json["error"]) == (413, "TooLarge")


async def test_level_quorum_without_a_set(web, orders, monkeypatch):
    monkeypatch.setattr("tailrace_server.serving.web.clients.RETRY_SECONDS", 0.1)
    answer = await web("PUT", "/feeds/orders/keys/k?level=quorum", b"1")
    assert (answer.code, answer.json["error"], answer.headers["retry-after"]) == (503, "NotDurable", "1")


async def test_another_method_is_told_which_there_are(web, orders):
    answer = await web("PATCH", "/feeds/orders/keys/k")
    assert (answer.code, set(answer.headers["allow"].split(", "))) == (405, {"GET", "HEAD", "PUT", "DELETE"})


async def test_writes_count_among_those_of_frames(web, running, orders):
    """A request is one of the SDK to the node, so each of its metrics, bounds and logs counts it."""
    for _ in range(3):
        await web("PUT", "/feeds/orders/keys/k", b"1")
    text, _ = await running.node.metrics()
    assert b"tailrace_written_blocks_total 3.0" in text
    assert b'tailrace_requests_total{opcode="write"} 3.0' in text.lower()


async def test_a_key_with_a_ttl_expires(web, orders):
    assert (await web("PUT", "/feeds/orders/keys/k?ttl=1", b"1")).code == 200
    async with orders.consume(keys_only=True) as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations) and any(each.deleted for each in event):
                [deletion] = [each for each in event if each.deleted]
                break
    assert (deletion.key, deletion.expired) == (b"k", True)
    assert (await web("GET", "/feeds/orders/keys/k")).code == 404
