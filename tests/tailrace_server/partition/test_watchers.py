"""The watchers of a partition."""

from tailrace.model import Level
from tailrace_server.partition.watchers import Watchers


def test_each_level_has_its_watchers():
    watchers, heard = Watchers(), []
    notify = {level: (lambda level=level: heard.append(level)) for level in Level}
    for level in Level:
        watchers.watch(level, notify[level])
        watchers.watch(level, notify[level])
    for level in reversed(Level):
        watchers.more_visible(level)
    assert heard == list(reversed(Level)), "each once"
    for level in Level:
        assert watchers.is_watched
        watchers.unwatch(level, notify[level])
        watchers.unwatch(level, notify[level])
    assert not watchers.is_watched
    watchers.more_visible(Level.DISK)
    assert len(heard) == 3


def test_a_reader_may_leave_as_it_hears_of_a_flush():
    watchers, heard = Watchers(), []

    def leave():
        heard.append("left")
        watchers.off_flush(leave)

    watchers.on_flush(leave)
    watchers.on_flush(stay := lambda: heard.append("stayed"))
    watchers.flushed()
    watchers.flushed()
    assert heard == ["left", "stayed", "stayed"]
    assert not watchers.is_watched
    watchers.off_flush(stay)
    watchers.flushed()
    assert len(heard) == 3
