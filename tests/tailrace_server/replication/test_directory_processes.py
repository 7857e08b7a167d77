"""The order in which processes have followed from directories, by a model, and its bounds."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.replication.directory_processes import DIRECTORIES_MAX, FORMER_MAX, DirectoryProcesses

TOKENS = st.sampled_from([b"", b"1", b"2", b"3"])


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), TOKENS), max_size=20))
def test_only_the_last_process_of_a_directory_is_not_a_former_one(steps):
    """A leader asks before it notes a process, and so notes no former one."""
    processes, followed = DirectoryProcesses(), {b"a": [], b"b": []}
    for directory, start in steps:
        if not processes.is_former(directory, start):
            processes.follows(directory, start)
            if start and start not in followed[directory]:
                followed[directory].append(start)
        for each, starts in followed.items():
            found = [token for token in (b"", b"1", b"2", b"3") if processes.is_former(each, token)]
            assert found == sorted(starts[:-1])


def test_the_log_tells_once_of_each_former_process():
    processes = DirectoryProcesses()
    for start in (b"1", b"2", b"3"):
        processes.follows(b"a", start)
    assert [processes.told_of(b"a", start) for start in (b"1", b"2", b"1", b"2")] == [False, False, True, True]
    processes.follows(b"a", b"4")
    assert [processes.told_of(b"a", start) for start in (b"1", b"3")] == [True, False]


def test_there_are_bounds():
    processes = DirectoryProcesses()
    starts = [b"%d" % number for number in range(FORMER_MAX + 2)]
    for start in starts:
        processes.follows(b"a", start)
    assert [processes.is_former(b"a", start) for start in starts] == [False, *[True] * FORMER_MAX, False]
    for number in range(DIRECTORIES_MAX - 1):
        processes.follows(b"%d" % number, b"1")
    assert processes.is_former(b"a", starts[1])
    processes.follows(b"more", b"1")
    assert not processes.is_former(b"a", starts[1])
