"""Which checkpoints stay.

Rule 5: never below two usable ones; a newer one is committed before an older one goes.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.decide.retention import FLOOR, Candidate, Keep, judge
from holdfast.errors import UsageError
from holdfast.spec.names import CheckpointId


def at(step: int, attempt: int = 1, metric: float | None = None, marks: str = "") -> Candidate:
    """Make a candidate; `marks` holds "p" for pinned, "r" for refused."""
    checkpoint = CheckpointId(attempt=attempt, step=step)
    return Candidate(checkpoint=checkpoint, metric=metric, pinned="p" in marks, refused="r" in marks)


def steps_kept(keep: Keep, candidates: Iterable[Candidate]) -> list[tuple[int, int]]:
    """List what stays as (attempt, step), oldest first."""
    return [(c.attempt, c.step) for c, _ in judge(keep, candidates).kept]


STEPS = [at(step) for step in range(10, 100, 10)]


@pytest.mark.parametrize(
    ("keep", "candidates", "kept"),
    [
        (Keep(last=3), STEPS, [70, 80, 90]),
        (Keep(last=100), STEPS, [10, 20, 30, 40, 50, 60, 70, 80, 90]),
        (Keep(last=1), STEPS, [80, 90]),
        (Keep(last=1), STEPS[:1], [10]),
        (Keep(last=2), [], []),
        (Keep(last=2), [at(10, marks="p"), *STEPS[1:]], [10, 80, 90]),
        (Keep(last=2, every_steps=30), STEPS, [30, 60, 80, 90]),
        (Keep(last=2, every_steps=30), [at(s) for s in (10, 29, 31, 50, 61, 75, 80, 85)], [31, 61, 80, 85]),
        (Keep(last=2, every_steps=1), STEPS, [10, 20, 30, 40, 50, 60, 70, 80, 90]),
        (Keep(last=2, every_steps=1000), STEPS, [80, 90]),
        (Keep(last=2, every_steps=50), [at(0), at(10), at(60), at(70), at(80)], [60, 70, 80]),
    ],
)  # fmt: skip
def test_rules(keep: Keep, candidates: Sequence[Candidate], kept: list[int]) -> None:
    """A checkpoint stays if any rule wants it; retention of one keeps two; step 0 is no multiple."""
    assert steps_kept(keep, candidates) == [(1, step) for step in kept]


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("mode", "best", "metrics", "kept"),
    [
        ("min", 1, [0.5, 0.1, 0.9, 0.8, 0.7], [2, 4, 5]),
        ("max", 1, [0.5, 0.1, 0.9, 0.8, 0.7], [3, 4, 5]),
        ("min", 2, [0.5, 0.1, 0.9, 0.8, 0.7], [1, 2, 4, 5]),
        ("min", 1, [NAN, -INF, 0.9, None, NAN], [3, 4, 5]),
        ("max", 1, [NAN, INF, 0.9, 0.8, NAN], [3, 4, 5]),
        ("min", 1, [NAN, NAN, None, None, NAN], [4, 5]),
        ("min", 1, [0.0, -0.0, 1.0, 1.0, 1.0], [1, 4, 5]),
        ("max", 1, [-1.0, 0.0, -2.0, -3.0, -3.0], [2, 4, 5]),
        ("min", 9, [0.5, 0.1, 0.9, 0.8, 0.7], [1, 2, 3, 4, 5]),
        ("min", 2, [0.9, 0.9, 0.9, 0.1, 0.1], [4, 5]),
    ],
)  # fmt: skip
def test_best(mode: str, best: int, metrics: list[float | None], kept: list[int]) -> None:
    """The best by a metric stay; NaN, infinities and missing values are never best; the older of equals is."""
    keep = Keep(last=2, best=best, metric="loss", mode=mode)
    candidates = [at(step, metric=metric) for step, metric in enumerate(metrics, start=1)]
    assert steps_kept(keep, candidates) == [(1, step) for step in kept]


def test_a_later_attempt_that_went_back_is_newer() -> None:
    """`last` counts by age: the branch that was left goes first, although its steps are higher."""
    candidates = [at(90), at(100), at(60, attempt=2), at(70, attempt=2)]
    assert steps_kept(Keep(last=2), candidates) == [(2, 60), (2, 70)]
    assert judge(Keep(last=2), candidates).let_go == (candidates[0].checkpoint, candidates[1].checkpoint)


def test_of_equal_steps_the_newer_attempts_is_kept_for_ever() -> None:
    """Spaced retention at one step prefers the attempt that training went on from."""
    candidates = [at(100), at(100, attempt=2), at(150, attempt=2), at(160, attempt=2)]
    assert steps_kept(Keep(last=2, every_steps=100), candidates) == [(2, 100), (2, 150), (2, 160)]


def test_a_refused_one_counts_for_nothing() -> None:
    """Damaged ones take no place among the last, the best or the spaced ones."""
    candidates = [at(10, metric=0.5), at(20, metric=0.4), at(30, metric=0.1, marks="r"), at(40, metric=0.9)]
    keep = Keep(last=2, best=1, metric="loss", every_steps=30)
    assert [s for _, s in steps_kept(keep, candidates)] == [20, 30, 40]
    assert dict(judge(keep, candidates).kept)[candidates[2].checkpoint] == "damaged, but not older than what is kept"


def test_a_refused_one_goes_once_everything_kept_is_newer() -> None:
    """It is not deleted while it is among the newest: a person may still mend it."""
    refused = at(30, marks="r")
    assert judge(Keep(last=2), [at(20), refused, at(40)]).let_go == ()
    assert judge(Keep(last=2), [at(20), refused, at(40), at(50)]).let_go == (at(20).checkpoint, refused.checkpoint)


def test_all_refused_all_stay() -> None:
    """Nothing usable: nothing goes."""
    assert judge(Keep(last=1), [at(10, marks="r"), at(20, marks="r"), at(30, marks="r")]).let_go == ()


def test_a_pinned_one_stays_even_when_refused() -> None:
    """A pin is a person's word."""
    candidates = [at(10, marks="pr"), at(20), at(30), at(40)]
    assert steps_kept(Keep(last=2), candidates) == [(1, 10), (1, 30), (1, 40)]
    assert dict(judge(Keep(last=2), candidates).kept)[candidates[0].checkpoint] == "pinned"


candidates = st.lists(
    st.builds(at, st.integers(0, 60), st.integers(1, 3), st.none() | st.floats(), st.sampled_from(["", "", "p", "r"])),
    max_size=12,
    unique_by=lambda c: c.checkpoint,
)
rules = st.builds(
    Keep,
    last=st.integers(1, 5),
    best=st.integers(0, 3),
    metric=st.just("loss"),
    mode=st.sampled_from(["min", "max"]),
    every_steps=st.none() | st.integers(1, 30),
)


@given(rules, candidates)
def test_whatever_the_rules_two_usable_ones_stay(keep: Keep, found: list[Candidate]) -> None:
    """Rule 5, for any rules and any candidates; the newest usable one always stays, and nothing is lost track of."""
    result = judge(keep, found)
    kept = {c for c, _ in result.kept}
    usable = sorted(c.checkpoint for c in found if not c.refused)
    assert len(kept & set(usable)) >= min(FLOOR, len(usable))
    assert set(usable[-FLOOR:]) <= kept
    assert sorted([*kept, *result.let_go]) == sorted(c.checkpoint for c in found)
    assert {c.checkpoint for c in found if c.pinned} <= kept
    assert list(result.let_go) == sorted(result.let_go)
    assert all(reason for _, reason in result.kept)


@given(rules, candidates)
def test_what_stays_stays(keep: Keep, found: list[Candidate]) -> None:
    """Applying the rules again to what stayed lets nothing more go: an interrupted prune changes no verdict."""
    kept = {c for c, _ in judge(keep, found).kept}
    assert judge(keep, [c for c in found if c.checkpoint in kept]).let_go == ()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"last": 0}, "at least 1"),
        ({"best": -1}, "at least 0"),
        ({"best": 1}, "name of a reported metric"),
        ({"mode": "lowest"}, '"min" or "max"'),
        ({"every_steps": 0}, "positive number"),
    ],
)
def test_rules_that_make_no_sense(arguments: dict[str, Any], says: str) -> None:
    """They are refused when they are written down, not at the first prune."""
    with pytest.raises(UsageError, match=says):
        Keep(**arguments)
