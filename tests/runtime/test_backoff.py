"""Back-off: a pure value."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadArgument
from headrace.runtime import Backoff


@st.composite
def backoffs(draw: st.DrawFn) -> Backoff:
    first_s = draw(st.just(0.0) | st.floats(1e-6, 100))
    limit_s = draw(st.floats(first_s, 10_000))
    return Backoff(first_s, draw(st.floats(1, 100)), limit_s, draw(st.floats(0, 1)))


CHANCE = st.floats(0, 1, exclude_max=True)


@given(backoffs(), st.integers(1, 10**9), CHANCE)
def test_a_wait_is_never_negative_nor_above_the_limit(backoff: Backoff, attempt: int, chance: float) -> None:
    """However long something stays down, the wait lies between 0 and the limit."""
    assert 0 <= backoff.delay_s(attempt, lambda: chance) <= backoff.limit_s


@given(backoffs(), st.integers(1, 10_000), CHANCE)
def test_waits_do_not_shrink(backoff: Backoff, attempt: int, chance: float) -> None:
    """With the same luck a later attempt waits at least as long."""
    earlier = backoff.delay_s(attempt, lambda: chance)
    later = backoff.delay_s(attempt + 1, lambda: chance)
    assert later >= earlier or math.isclose(later, earlier)


@given(backoffs(), st.integers(1, 10_000), CHANCE)
def test_jitter_takes_at_most_its_share(backoff: Backoff, attempt: int, chance: float) -> None:
    """Chance makes a wait shorter, by no more than `jitter` of it."""
    whole = backoff.delay_s(attempt, lambda: 0.0)
    wait = backoff.delay_s(attempt, lambda: chance)
    assert whole * (1 - backoff.jitter) <= wait or math.isclose(whole * (1 - backoff.jitter), wait)
    assert wait <= whole


def test_waits_double_up_to_the_limit() -> None:
    """Without jitter the default factor gives 1, 2, 4, 5, 5 ... seconds."""
    backoff = Backoff(first_s=1, limit_s=5, jitter=0)
    assert [backoff.delay_s(attempt) for attempt in range(1, 6)] == [1, 2, 4, 5, 5]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"first_s": -1}, "first_s"),
        ({"factor": 0.5}, "factor"),
        ({"first_s": 5, "limit_s": 1}, "limit_s"),
        ({"limit_s": math.inf}, "limit_s"),
        ({"jitter": 1.1}, "jitter"),
        ({"factor": math.nan}, "factor"),
    ],
)
def test_impossible_values_are_refused(fields: dict[str, float], name: str) -> None:
    """A back-off that can't be waited for is refused, naming the field."""
    with pytest.raises(BadArgument) as refused:
        Backoff(**fields)
    assert refused.value.name == name


def test_attempts_are_counted_from_one() -> None:
    """Attempt 0 is the first try, which nobody waits for."""
    with pytest.raises(BadArgument, match="counted from 1"):
        Backoff().delay_s(0)
