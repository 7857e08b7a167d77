"""What a node may be told of others."""

import pytest

from tailrace.link.address import Address
from tailrace_server.config import Config

A, B = Address("a", 1), Address("b", 1)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"members": (A, B), "replica_of": B}, "not both"),
        ({"members": (A,)}, "two members or more"),
        ({"members": (A, A)}, "twice"),
        ({"members": (B, Address("c", 1))}, "own address, a:1"),
        ({"replica_of": A}, "replica of itself"),
    ],
)
def test_what_contradicts_itself_is_refused(options, why):
    with pytest.raises(ValueError, match=why):
        Config("data", listen=A, **options)


def test_a_node_is_alone_unless_it_is_told_of_others():
    assert Config("data", listen=A).is_alone
    assert not Config("data", listen=A, members=(A, B)).is_alone
    assert not Config("data", listen=A, replica_of=B).is_alone
