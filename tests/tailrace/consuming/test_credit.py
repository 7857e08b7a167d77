"""The credit of a consumer: every handled byte is credited once, a quarter of the window at once, the rest in time."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.consuming.credit import CREDIT_SECONDS, Credit


@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from([0.0, 0.4, 1.5])), max_size=40), st.integers(4, 400))
def test_every_handled_byte_is_credited_once_and_in_time(steps, window):
    credit, now, handled, credited, last = Credit(0.0), 0.0, 0, 0, 0.0
    credit.begin(window)
    for count, pause in steps:
        credit.handled(count)
        handled += count
        now += pause
        taken = credit.take(now)
        if taken:
            last = now
        credited += taken
        left = handled - credited
        assert left < max(window // 4, 1)
        assert not left or now < last + CREDIT_SECONDS
        assert (credit.due_at is None) == (not left)
    credit.leave()
    assert credited + credit.take(now) == handled


def test_the_first_byte_and_enough_of_them_have_to_be_sent():
    credit = Credit(0.0)
    credit.begin(40)
    wanted = []
    for _ in range(4):
        credit.handled(4)
        wanted.append(credit.wants_to_send)
        credit.take(0.5)
    assert wanted == [True, False, True, True]  # the third has reached ten, and the fourth is the first of the next


def test_a_lost_connection_owes_nothing():
    credit = Credit(0.0)
    credit.handled(5)
    credit.forget()
    assert not credit.wants_to_send
    assert credit.take(10.0) == 0
