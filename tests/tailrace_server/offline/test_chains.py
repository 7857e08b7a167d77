from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.offline.chains import Gap, choose_chain
from tailrace_server.segment import NO_BASE, SegmentIdentity


def identity(name, after_seq, last_seq, base=NO_BASE, included=()):
    return SegmentIdentity(
        feed_id=b"f" * 16,
        partition=0,
        branch=b"b" * 16,
        segment_id=id_of(name),
        base_id=id_of(base) if isinstance(base, str) else base,
        included_ids=tuple(map(id_of, included)),
        is_major=False,
        deduplicated=False,
        after_seq=after_seq,
        last_seq=last_seq,
        purge_seq=0,
    )


def id_of(name):
    return name.encode().ljust(16, b".")


A = identity("a", 0, 100)
B = identity("b", 100, 200, "a")
C = identity("c", 200, 300, "b")
FOLDED = identity("ab", 0, 200, NO_BASE, ("b", "a"))


def test_neighbours_make_a_chain():
    assert choose_chain([C, A, B], 0) == [A, B, C]


def test_what_was_folded_goes_before_its_parts():
    assert choose_chain([A, B, C, FOLDED], 0) == [FOLDED, C]


def test_parts_do_where_the_folded_one_is_missing():
    assert choose_chain([A, B, C], 0) == [A, B, C]


def test_gaps_are_told():
    assert choose_chain([A, C], 0) == [A, Gap(100, 200), C]
    assert choose_chain([B, C], 0) == [Gap(0, 100), B, C]
    assert choose_chain([B, C], 100) == [B, C]
    assert choose_chain([], 0) == []


def test_a_segment_that_a_crash_left_beside_another_one_does_no_harm():
    longer = identity("d", 200, 320, "b")
    assert choose_chain([A, B, C, longer], 0) == [A, B, longer]


def test_a_segment_that_was_based_on_something_else_is_not_put_behind():
    stranger = identity("s", 100, 200, "x")
    assert choose_chain([A, B, stranger, C], 0) == [A, B, C]


@given(st.data())
def test_any_files_of_a_history_of_flushes_and_folds_make_a_chain_that_covers_all(data):
    ends = sorted(data.draw(st.sets(st.integers(1, 60), min_size=1, max_size=8)))
    chain, files = [], []
    before = 0
    for number, end in enumerate(ends):
        base = chain[-1].segment_id if chain else NO_BASE
        chain.append(identity(f"f{number}", before, end)._replace(base_id=base))
        files.append(chain[-1])
        before = end
        if len(chain) > 1 and data.draw(st.booleans()):
            first = data.draw(st.integers(0, len(chain) - 2))
            folded = chain[first:]
            ids = tuple(i for one in reversed(folded) for i in (one.segment_id, *one.included_ids))
            chain[first:] = [
                identity(f"m{number}", folded[0].after_seq, folded[-1].last_seq)._replace(
                    base_id=folded[0].base_id, included_ids=ids
                )
            ]
            files.append(chain[-1])
    kept = [*chain, *data.draw(st.lists(st.sampled_from(files)))]
    pieces = choose_chain(list({one.segment_id: one for one in kept}.values()), 0)
    assert not any(isinstance(piece, Gap) for piece in pieces)
    assert [piece.after_seq for piece in pieces] == [0, *(piece.last_seq for piece in pieces[:-1])]
    assert pieces[-1].last_seq == ends[-1]
    assert len(pieces) <= len(chain)
    for older, newer in pairwise(pieces):
        assert newer.base_id in (older.segment_id, *older.included_ids)
