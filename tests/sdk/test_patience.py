"""How often and how long is tried again."""

from hypothesis import given
from hypothesis import strategies as st

from cloche._patience import LONGEST_DELAY_S, Patience


def test_pauses_double_up_to_two_seconds() -> None:
    delays = list(Patience(10).delays())
    assert delays[:6] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
    assert delays[6] == LONGEST_DELAY_S


@given(st.floats(min_value=0, max_value=600))
def test_pauses_add_up_to_the_window(window_s: float) -> None:
    assert abs(sum(Patience(window_s).delays()) - window_s) < 1e-6
