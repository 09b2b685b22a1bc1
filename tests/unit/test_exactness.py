"""How exact a resume is, and what lowered it."""

import pytest

from holdfast.decide.exactness import Exactness, Level, judge

SAME: dict[str, dict[str, object]] = {
    "versions": {"torch": "2.13.0", "cuda": None},
    "flags": {"threads": 2, "compiled": []},
}
EXACT = (Level.BIT_EXACT, "")


def changed(group: str, name: str, value: object) -> dict[str, dict[str, object]]:
    """Make today's circumstances with one value changed."""
    return {**SAME, group: {**SAME[group], name: value}}


def test_nothing_changed() -> None:
    """The same circumstances and an exact loader: bit-exact, with no reason."""
    assert judge(SAME, SAME, EXACT) == Exactness(Level.BIT_EXACT, ())


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (changed("versions", "torch", "2.14.0"), "torch was 2.13.0, is 2.14.0"),
        (changed("versions", "cuda", "13.0"), "cuda was unset, is 13.0"),
        (changed("flags", "threads", 4), "threads was 2, is 4"),
        (changed("flags", "added_later", True), "added_later was unset, is True"),
        ({"versions": SAME["versions"]}, "compiled was [], is unset"),
    ],
)
def test_a_changed_circumstance_is_named(now: dict[str, dict[str, object]], why: str) -> None:
    """One difference in versions or flags lowers to exact samples, and the message shows both values."""
    result = judge(SAME, now, EXACT)
    assert result.level is Level.EXACT_SAMPLES
    assert why in result.lowered_by


def test_the_worst_item_decides_and_comes_first() -> None:
    """A loader that repeats samples outweighs everything else; all items are told."""
    result = judge(SAME, changed("flags", "threads", 4), (Level.FULL_STATE, "the loader cannot seek"), ["lr"])
    assert result.level is Level.FULL_STATE
    assert result.lowered_by == ("the loader cannot seek", "threads was 2, is 4", "config lr was changed")


def test_an_allowed_config_change_lowers() -> None:
    """Samples stay exact; the numbers are no longer those of an uninterrupted run."""
    assert judge(SAME, SAME, EXACT, ["lr"]) == Exactness(Level.EXACT_SAMPLES, ("config lr was changed",))


def test_levels_are_ordered_and_labelled() -> None:
    """Each includes the ones below; the labels are those that people see."""
    assert sorted(Level, reverse=True)[0] is Level.BIT_EXACT
    assert [level.label for level in sorted(Level)] == ["weights", "full state", "exact samples", "bit-exact"]
