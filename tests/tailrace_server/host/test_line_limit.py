"""Lines of a log that peers can cause."""

from tailrace_server.host.line_limit import CAUSES_MAX, INTERVAL_SECONDS, LINES_FREE, OTHERS, LineLimit


def test_the_first_lines_are_written_and_the_rest_is_counted():
    limit = LineLimit()
    assert [limit.permits("a", 0.0) for _ in range(LINES_FREE + 3)] == [True] * LINES_FREE + [False] * 3
    assert limit.permits("b", 1.0)
    assert limit.ended(INTERVAL_SECONDS - 0.1) == []
    assert limit.ended(INTERVAL_SECONDS) == [("a", 3)]
    assert limit.permits("a", INTERVAL_SECONDS)
    assert limit.ended(2 * INTERVAL_SECONDS) == []
    assert len(limit) == 0


def test_the_causes_are_bounded():
    limit = LineLimit()
    for number in range(CAUSES_MAX + 2 * LINES_FREE):
        limit.permits(str(number), 0.0)
    assert len(limit) == CAUSES_MAX + 1
    assert limit.ended(INTERVAL_SECONDS) == [(OTHERS, LINES_FREE)]
