"""What a node knows of a group: the partitions by owner, and the free ones, agree with their states."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace.wire.consumer_messages import ConsumerId
from tailrace_server.serving.consumer_groups import Group
from tailrace_server.state.ownership import Ownership, OwnershipEvent

OWNERS = [b"", b"one", b"two", b"three"]
STEPS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(list(OwnershipEvent)), st.sampled_from(OWNERS[1:])))


def possible(state, event):
    """Whether the event has a place in the state."""
    return {
        Ownership.FREE: event is OwnershipEvent.GRANT,
        Ownership.GRANTING: event not in (OwnershipEvent.GRANT, OwnershipEvent.REVOKE),
        Ownership.OWNED: event not in (OwnershipEvent.GRANT, OwnershipEvent.CONFIRMED),
        Ownership.REVOKING: event in (OwnershipEvent.RELEASED, OwnershipEvent.EXPIRED),
    }[state]


@settings(max_examples=examples(50))
@given(loaded=st.lists(st.sampled_from(OWNERS), min_size=4, max_size=4), steps=STEPS)
def test_partitions_by_owner_agree_with_their_states(loaded, steps):
    group, expected = Group(ConsumerId(bytes(16), "group", "g")), {}
    for partition, owner in enumerate(loaded):
        group.load(partition, owner)
        expected[partition] = owner
    for partition, event, owner in steps:
        if not possible(group.states[partition], event):
            continue
        if event is OwnershipEvent.GRANT:
            group.grant(partition, owner)
            expected[partition] = owner
        else:
            group.step(partition, event)
        if group.states[partition] is Ownership.FREE:
            expected[partition] = b""
        assert group.free == {p for p, each in expected.items() if not each}
        assert group.owners == {p: each for p, each in expected.items() if each}
        for each in OWNERS[1:]:
            assert group.owned_by(each) == [p for p, of in sorted(expected.items()) if of == each]
