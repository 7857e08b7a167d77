"""Sharing partitions: evenly, for all, and with as few moves as possible."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.state.assignment import assign

MEMBERS = [bytes([number]) * 16 for number in range(9)]
GROUPS = st.builds(
    lambda partitions, members, owners: (range(partitions), members, dict(enumerate(owners[:partitions]))),
    st.integers(0, 40),
    st.sets(st.sampled_from(MEMBERS[:6])),
    st.lists(st.sampled_from([b"", *MEMBERS]), max_size=40),
)


def moves(owners, after):
    return sum(owners.get(partition) != member for partition, member in after.items())


@given(GROUPS)
def test_each_partition_has_one_owner_and_shares_differ_by_one(group):
    partitions, members, owners = group
    after = assign(partitions, members, owners)
    assert after.keys() == (set(partitions) if members else set())
    counts = Counter(after.values())
    sizes = [counts[member] for member in members]
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(GROUPS)
def test_as_few_as_possible_move(group):
    """Those without a member have to; of the others each member keeps its share, the larger ones if it has them."""
    partitions, members, owners = group
    if not members:
        return
    counts = sorted((sum(owners.get(p) == member for p in partitions) for member in members), reverse=True)
    share, larger = divmod(len(partitions), len(members))
    kept = sum(min(count, share + (number < larger)) for number, count in enumerate(counts))
    assert moves(owners, assign(partitions, members, owners)) == len(partitions) - kept


@given(GROUPS)
def test_it_is_at_rest_at_once(group):
    partitions, members, owners = group
    after = assign(partitions, members, owners)
    assert assign(partitions, members, after) == after


def test_one_of_8_members_of_64_partitions_dies():
    before = assign(range(64), MEMBERS[:8], {})
    after = assign(range(64), MEMBERS[1:8], before)
    assert moves(before, after) == 8
    assert sorted(Counter(after.values()).values()) == [9, 9, 9, 9, 9, 9, 10]
