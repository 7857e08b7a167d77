import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.serving.hosts import host_allowed, refusal

NAMES = {"node1.example.org", "tailrace"}


@pytest.mark.parametrize(
    "header",
    [
        None,
        "localhost",
        "LOCALHOST:4780",
        "localhost.",
        "127.0.0.1",
        "127.0.0.1:4780",
        "10.1.2.3:80",
        "[::1]:4780",
        "[::1]",
        "::1",
        "[fe80::1]:4780",
        "node1.example.org",
        "Node1.Example.ORG:443",
        "node1.example.org.:443",
        "tailrace:4780",
    ],
)
def test_addresses_and_the_nodes_own_names(header):
    assert host_allowed(header, NAMES)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "evil.example",
        "evil.example:4780",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "node1.example.org.evil.example",
        "node2.example.org",
        "example.org",
        "127.0.0.1@evil.example",
        "evil.example:127.0.0.1",
        "[::1].evil.example",
        "127.0.0.1:4780:evil",
        "localhost:evil",
        "0x7f.1",
        "*",
    ],
)
def test_a_name_that_may_resolve_to_anything(header):
    assert not host_allowed(header, NAMES)
    assert host_allowed(header, {"*"})
    assert "--allow-host" in refusal(header)


@given(st.text(st.characters(codec="latin-1"), max_size=300))
def test_whatever_it_says_is_answered(header):
    if not host_allowed(header, NAMES):
        assert len(refusal(header)) < 400
    assert host_allowed(header, {"*"})


@given(st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z][a-z0-9-]{0,20}){0,3}(:[0-9]{1,5})?", fullmatch=True))
def test_only_names_that_were_given(header):
    host = header.partition(":")[0]
    assert host_allowed(header, NAMES) == (host in NAMES or host == "localhost")
