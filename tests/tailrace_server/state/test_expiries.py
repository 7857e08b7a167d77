"""The ranges of rows that will expire: none is forgotten, and each is looked at in time."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.tiers import examples

from tailrace_server.state import expiries
from tailrace_server.state.ahead import JUMP_US_MAX
from tailrace_server.state.expiries import NEVER_US, ExpiryRange, PendingExpiries
from tailrace_server.state.expiry_clock import ExpiryClock


class Pending(RuleBasedStateMachine):
    """Rows are added and looked at; the model has the time of the look of each row."""

    def __init__(self):
        super().__init__()
        self.pending = PendingExpiries()
        self.looks = {}
        self.last_seq = 0

    @rule(rows=st.integers(1, 6_000), gap=st.integers(0, 3), look=st.sampled_from([*range(20), NEVER_US]))
    def add(self, rows, gap, look):
        first = self.last_seq + 1 + gap
        self.last_seq = first + rows - 1
        self.pending.add(first, self.last_seq, look)
        if look < NEVER_US:
            self.looks.update(dict.fromkeys((first, self.last_seq), look))

    @precondition(lambda self: len(self.pending))
    @rule(now=st.integers(0, 25), data=st.data())
    def look(self, now, data):
        due = self.pending.due(now)
        if due is None:
            assert all(look > now for look in self.looks.values())
            return
        if data.draw(st.booleans()):  # rows that come while the look is under way
            self.add(5, 0, 7)
        seqs = [seq for seq in self.looks if due.first_seq <= seq <= due.last_seq]
        left = []
        for seq in sorted(seqs):
            if self.looks[seq] <= now:
                del self.looks[seq]
            else:
                left.append(ExpiryRange(seq, seq, self.looks[seq]))
        self.pending.replace(due, left)

    @invariant()
    def every_row_is_looked_at_in_time(self):
        self.pending.check()
        ranges = self.pending.ranges
        for seq, look in self.looks.items():
            assert any(each.first_seq <= seq <= each.last_seq and each.look_us <= look for each in ranges), seq


def _machine(ranges_max):
    class Bounded(Pending):
        def __init__(self):
            expiries.RANGES_MAX = ranges_max
            super().__init__()

        def teardown(self):
            expiries.RANGES_MAX = 1_024

    case = Bounded.TestCase
    case.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
    return case


TestFewRanges = _machine(3)
TestManyRanges = _machine(1_024)


@given(st.lists(st.tuples(st.integers(0, 10**13), st.integers(1, 10**8)), max_size=20))
def test_the_clock_is_never_more_than_an_hour_ahead_of_the_time_since_the_start(readings):
    clock, began, passed = ExpiryClock(10**15, 500), 10**15, 500
    for ahead, more in readings:
        passed += more
        now = clock.now_us(began + ahead, passed)
        assert now <= began + ahead
        assert now <= began + (passed - 500) + JUMP_US_MAX
        if ahead <= passed - 500 + JUMP_US_MAX:
            assert now == began + ahead
