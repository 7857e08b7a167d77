"""The bound of connections that have not greeted."""

from tailrace_server.config import Limits
from tailrace_server.host.greetings import Greetings


def test_the_oldest_of_too_many_ends():
    ended = []
    greetings = Greetings(Limits(greetings_max=2))
    for name in "abcd":
        greetings.begin(name, lambda name=name: ended.append(name))
    assert ended == ["a", "b"]
    assert len(greetings) == 2


def test_who_has_greeted_does_not_count():
    ended = []
    greetings = Greetings(Limits(greetings_max=1))
    greetings.begin("a", lambda: ended.append("a"))
    greetings.over("a")
    greetings.over("a")
    greetings.begin("b", lambda: ended.append("b"))
    assert ended == []
