import pytest

from tailrace_server.serving.exposure import is_loopback, why_exposed

OPEN, LOCAL = ("0.0.0.0", 4700), ("127.0.0.1", 4700)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("node-1", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_loopback(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("addresses", "options", "named"),
    [
        ([LOCAL, None, LOCAL], {}, None),
        ([LOCAL, OPEN, None], {}, ("0.0.0.0:4700", "without tokens", "without TLS", "--insecure")),
        ([OPEN], {"has_tls": True}, ("without tokens",)),
        ([OPEN], {"has_tokens": True}, ("without TLS",)),
        ([OPEN], {"has_tls": True, "has_tokens": True}, None),
        ([OPEN], {"insecure": True}, None),
    ],
)
def test_a_node_listens_beyond_its_machine_only_if_it_is_safe_or_told_to(addresses, options, named):
    why = why_exposed(addresses, **{"has_tls": False, "has_tokens": False, "insecure": False} | options)
    assert (why is None) == (named is None)
    assert all(text in why for text in named or ())
