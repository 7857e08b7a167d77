"""How often a node is looked at for its board."""

from tailrace_server.serving.board import board as board_module
from tailrace_server.serving.board.board import INTERVAL_SECONDS, INTERVAL_SECONDS_MAX, SHARE_MAX, _interval


def counted(monkeypatch, name):
    """The calls of a function of the board."""
    calls, real = [], getattr(board_module, name)

    def count(*arguments):
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(board_module, name, count)
    return calls


async def test_one_look_serves_all_who_ask_within_its_interval(running, monkeypatch):
    board = running.node.board
    problems, samples = counted(monkeypatch, "node_problems"), counted(monkeypatch, "Sample")
    first = await board.fresh()
    for _ in range(5):
        assert await board.fresh() is first
        assert board.health() is board.health()
    assert (len(problems), len(samples)) == (1, 1)
    board._interval_s = board._health_interval_s = 0.0
    assert await board.fresh() is not first
    board.health()
    assert (len(problems), len(samples)) == (2, 2)
    assert board.before is first


def test_looks_that_take_long_are_further_apart():
    assert _interval(0.0) == INTERVAL_SECONDS
    assert _interval(0.05) == 0.05 / SHARE_MAX
    assert _interval(5.0) == INTERVAL_SECONDS_MAX
