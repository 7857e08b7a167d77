from tailrace_server.stream.peer_progress import PeerProgress


def looked(*looks):
    """The seconds stuck after each look, (now, waits, credited, backlog), of a connection made at 10."""
    progress = PeerProgress(10.0)
    found = []
    for now, *rest in looks:
        progress.look(now, *rest)
        found.append(progress.stuck_seconds(now))
    return found


def test_nothing_waits_so_nothing_is_stuck():
    assert looked((12.0, False, 0, 0), (15.0, False, 0, 0)) == [0.0, 0.0]


def test_it_begins_at_the_last_look_at_which_nothing_waited():
    assert looked((12.0, False, 0, 0), (15.0, True, 0, 0), (19.0, True, 0, 0)) == [0.0, 3.0, 7.0]


def test_credit_is_progress():
    assert looked((12.0, True, 5, 0), (15.0, True, 5, 0), (16.0, True, 9, 0)) == [0.0, 3.0, 0.0]


def test_bytes_that_leave_are_progress_and_more_that_wait_are_not():
    looks = (12.0, True, 0, 900), (15.0, True, 0, 916), (16.0, True, 0, 500), (18.0, True, 0, 500)
    assert looked(*looks) == [2.0, 5.0, 0.0, 2.0]
