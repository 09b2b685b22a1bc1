"""When to save: each rule alone, and together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.decide.interval import Cadence, History, due, interval

LONG_S = 1e9


def passed(
    steps: tuple[int, int] = (1, 0),
    seconds: float = 0.0,
    durable: float = 0.0,
    asked: str | None = None,
    within: bool = False,
) -> History:
    """Make what is known at a boundary; `steps` are today's and that of the last save."""
    return History(
        step=steps[0],
        saved_step=steps[1],
        in_accumulation=within,
        seconds_since=seconds,
        durable_s=durable,
        asked=asked,
    )


CASES: list[tuple[Cadence, History, str | None]] = [
    (Cadence(), passed((10**6, 0), LONG_S), None),
    (Cadence(), passed((0, 0), asked="asked for by hand"), "asked for by hand"),
    (Cadence(every_steps=1), passed((7, 7), LONG_S), None),
    (Cadence(every_steps=5), passed((4, 0), LONG_S), None),
    (Cadence(every_steps=5), passed((5, 0)), "every 5 steps"),
    (Cadence(every_steps=5), passed((17, 5)), "every 5 steps"),
    (Cadence(every_steps=5), passed((9, 7)), None),
    (Cadence(every_steps=5), passed((10, 7)), "every 5 steps"),
    (Cadence(every_steps=5), passed((5, 0), within=True), None),
    (Cadence(every_s=30.0), passed((1, 0), 29.9), None),
    (Cadence(every_s=30.0), passed((1, 0), 30.0), "every 30 s"),
    (Cadence(every_s=30.0), passed((1, 1), 30.0, within=True), "every 30 s"),
    (Cadence(may_lose_s=300.0), passed((1, 0), 299.9), None),
    (Cadence(may_lose_s=300.0), passed((1, 0), 300.0), "may lose 300 s"),
    (Cadence(may_lose_s=300.0), passed((1, 0), 280.0, durable=20.0), "may lose 300 s"),
    (Cadence(may_lose_s=300.0), passed((1, 0), 279.9, durable=20.0), None),
    (Cadence(may_lose_s=300.0), passed((1, 0), 149.9, durable=LONG_S), None),
    (Cadence(may_lose_s=300.0), passed((1, 0), 150.0, durable=LONG_S), "may lose 300 s"),
    (Cadence(may_lose_s=300.0, every_steps=5), passed((5, 0), 1.0), "every 5 steps"),
    (Cadence(may_lose_s=300.0, every_s=10.0, every_steps=50), passed((5, 0), 11.0), "every 10 s"),
    (Cadence(may_lose_s=5.0, every_s=10.0), passed((5, 0), 6.0), "may lose 5 s"),
]


@pytest.mark.parametrize(("cadence", "history", "reason"), CASES)
def test_due(cadence: Cadence, history: History, reason: str | None) -> None:
    """Any rule being due is enough, and the reason names the rule; None stands for no save."""
    decision = due(cadence, history)
    assert decision.save == (reason is not None)
    assert decision.reason == (reason or decision.reason)
    assert decision.reason


@given(st.integers(1, 50), st.lists(st.integers(1, 9), min_size=1, max_size=60))
def test_saves_stay_on_multiples(every_steps: int, waits: list[int]) -> None:
    """Saves that came late, because no buffer was free, do not shift the later ones: a multiple is never skipped."""
    step = saved = 0
    for wait in waits:
        step += 1
        if due(Cadence(every_steps=every_steps), passed((step, saved))).save:
            assert step % every_steps == 0 or step // every_steps > saved // every_steps
            step += wait - 1
            saved = step
        else:
            assert step % every_steps != 0


@given(st.floats(0.001, 1e6), st.floats(0, 1e6))
def test_lost_work_stays_within_the_dial(may_lose_s: float, durable_s: float) -> None:
    """Interval and time-to-durable together are what may be lost, as long as a save takes less than half of it."""
    between = interval(may_lose_s, durable_s)
    assert between >= may_lose_s / 2
    if durable_s <= may_lose_s / 2:
        assert between + durable_s == pytest.approx(may_lose_s)
