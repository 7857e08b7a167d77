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
    assert parse_url(url) == (tuple(Address(*address) for address in addresses), "", False)


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
    ],
)
def test_what_is_no_url_of_a_node(url):
    with pytest.raises(ValueError, match="write"):
        parse_url(url)


def test_a_url_may_name_a_cluster():
    assert parse_url("tailrace://a:1,b:2/shop-1.eu") == ((Address("a", 1), Address("b", 2)), "shop-1.eu", False)


def test_a_url_may_ask_for_tls():
    assert parse_url("tailraces://a:1/shop") == ((Address("a", 1),), "shop", True)


def test_a_url_is_a_str():
    with pytest.raises(TypeError, match="a URL is a str, not bytes"):
        parse_url(b"tailrace://a")


def test_an_address_reads_back():
    for address in (Address("a", 1), Address("::1", 4700)):
        assert parse_address(str(address)) == address
    assert parse_address("a", 7) == Address("a", 7)
