"""Groups without async."""

from __future__ import annotations

import pytest

from tailrace import Assigned, Mutations, UnknownFeed


def members(client, feed):
    """The members of the group of ``feed``, as the node tells them."""
    [told] = [each for each in client.status().details["consumers"] if each["feed"] == feed.name]
    return told["members"]


def test_members_share_the_partitions_and_commit(client, feed):
    with feed.consume(group="workers") as one:
        assert one.next(10) == Assigned((0, 1, 2, 3))
        feed.put(b"k", b"v")
        while not isinstance(one.next(10), Mutations):
            pass
        one.commit()
    with feed.consume(group="workers") as two:
        assert two.next(10) == Assigned((0, 1, 2, 3))
        feed.put(b"k", b"w")
        while not isinstance(event := two.next(10), Mutations):
            pass
        assert event.values() == [b"w"]


def test_a_member_that_leaves_with_unread_events_is_none_at_once(client, feed):
    """A connection that is closed with unread bytes is reset, and the node has to know before."""
    with feed.writer() as writer:
        for number in range(20_000):
            writer.put(b"%d" % number, bytes(100))
    for _ in range(3):
        with feed.consume(group="workers") as stream:
            while not isinstance(stream.next(10), Mutations):
                pass
            assert len(members(client, feed)) == 1
        assert members(client, feed) == []


@pytest.mark.parametrize("asked", [{"name": "reader"}, {"group": "workers"}])
def test_a_feed_that_there_is_not_is_refused_on_entering(client, asked):
    with pytest.raises(UnknownFeed, match="there is no feed 'gone'"), client.feed("gone").consume(**asked):
        raise AssertionError("it was entered")
