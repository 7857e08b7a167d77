import pytest

from tailrace.link.address import DEFAULT_PORT, Address, parse_address, parse_url


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("tailrace://localhost", [("localhost", DEFAULT_PORT)]),
        ("tailrace://a:1,b:2,c", [("a", 1), ("b", 2), ("c", DEFAULT_PORT)]),
        ("tailrace://a:1,a:1", [("a", 1)]),
        ("tailrace://[::1]:5,[fe80::1]", [("::1", 5), ("fe80::1", DEFAULT_PORT)]),
        ("tailrace://10.0.0.1:80/", [("10.0.0.1", 80)]),
    ],
)
def test_urls(url, addresses):
    assert parse_url(url) == (tuple(Address(*address) for address in addresses), "", False, None)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:4700",
        "http://a",
        "tailrace:/a",
        "tailrace://",
        "tailrace://a,",
        "tailrace://a:port",
        "tailrace://a:70000",
        "tailrace://a/path/more",
        "tailrace://a/Name",
        "tailrace://a/name,b",
        "tailrace://a?x=1",
        "tailrace://a#x",
        "tailrace://user@a",
        "tailrace://[::1",
        "tailrace://:4700",
        "tailrace://a b",
        "tailrace://a, b",
        "ws://",
        "ws://a,",
        "ws://user:secret@a/",
        "ws://a/a b",
        "ws://a/x#y",
        "ws://a/\r\nX: y",
        "ws://a/" + "x" * 1_000,
        "ws://a/?token=secret",
        "ws://a/?cluster=a&cluster=b",
        "ws://a/?cluster=Shop",
        "ws://a/?",
    ],
)
def test_what_is_no_url_of_a_node(url):
    with pytest.raises(ValueError, match="write"):
        parse_url(url)


def test_a_url_may_name_a_cluster():
    assert parse_url("tailrace://a:1,b:2/shop-1.eu") == ((Address("a", 1), Address("b", 2)), "shop-1.eu", False, None)


def test_a_url_may_ask_for_tls():
    assert parse_url("tailraces://a:1/shop") == ((Address("a", 1),), "shop", True, None)


def test_a_url_is_a_str():
    with pytest.raises(TypeError, match="a URL is a str, not bytes"):
        parse_url(b"tailrace://a")


def test_an_address_reads_back():
    for address in (Address("a", 1), Address("::1", 4700)):
        assert parse_address(str(address)) == address
    assert parse_address("a", 7) == Address("a", 7)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ws://a", ((("a", 80),), "", False, "")),
        ("wss://a,b:4790/", ((("a", 443), ("b", 4790)), "", True, "")),
        ("wss://a/tail/race/?cluster=shop", ((("a", 443),), "shop", True, "/tail/race")),
    ],
)
def test_a_url_may_go_through_websocket(url, expected):
    assert parse_url(url) == expected


@pytest.mark.parametrize(
    "url",
    ["tailrace://a:1,b:2/shop", "tailraces://[::1]:5", "ws://a:80", "wss://a:443,b:4790/tail/race?cluster=shop"],
)
def test_a_url_is_written_again(url):
    assert str(parse_url(url)) == url
    assert parse_url(str(parse_url(url))) == parse_url(url)
