"""URLs of coordinators."""

from __future__ import annotations

import pytest

from tailrace.link.address import Address
from tailrace_server.coordination.store_url import StoreUrl, parse_store_url


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("etcd://a:1", StoreUrl((Address("a", 1),))),
        ("etcd://a,b:9,[::1]:5", StoreUrl((Address("a", 2379), Address("b", 9), Address("::1", 5)))),
        ("etcd://a/", StoreUrl((Address("a", 2379),))),
        ("etcd://a,a:2379", StoreUrl((Address("a", 2379),))),
        ("etcd://u%40v@a?password_file=/p", StoreUrl((Address("a", 2379),), False, "u@v", "/p")),
        ("etcds://a?ca=/c%20a", StoreUrl((Address("a", 2379),), True, ca="/c a")),
        ("etcds://a?cert=/c&key=/k", StoreUrl((Address("a", 2379),), True, cert="/c", key="/k")),
    ],
)
def test_a_url_has_these_parts(text, parts):
    assert parse_store_url(text) == parts


def test_for_people_a_url_has_no_user_and_no_files():
    assert str(parse_store_url("etcds://u@a:1,b:2?password_file=/p&ca=/c")) == "etcds://a:1,b:2"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no coordinator"),
        ("zk://a", "is no coordinator"),
        ("etcd:a", "is no coordinator"),
        ("etcd://", "is no address"),
        ("etcd://a,,b", "is no address"),
        ("etcd://a:x", "is no address"),
        ("etcd://a/prefix", "has a path"),
        ("etcd://u:secret@a?password_file=/p", "a password in the URL"),
        ("etcd://u@a", "a user needs a password"),
        ("etcd://a?password_file=/p", "a user needs a password"),
        ("etcd://a?ca=/c", "TLS needs etcds"),
        ("etcds://a?tls=1", "has no 'tls'"),
        ("etcds://a?cert=/c", "needs its key"),
        ("etcds://a?key=/c", "needs its key"),
        ("etcds://a?ca=/c&ca=/d", "given twice"),
        ("etcds://a?ca", "cannot be read"),
        ("etcd://" + ",".join(f"h{number}" for number in range(17)), "17 endpoints"),
    ],
)
def test_other_texts_are_refused_by_their_wrong_part(text, why):
    with pytest.raises(ValueError, match=why) as caught:
        parse_store_url(text)
    assert "secret" not in str(caught.value)
