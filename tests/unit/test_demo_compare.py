"""The demo's verdict can fail: whatever differs between the two trainings is found and named."""

import random
from dataclasses import replace

import pytest

from holdfast.cli.demo.compare import Final, Tensor, compare
from holdfast.cli.demo.kills import KINDS, plan
from holdfast.errors import UsageError

LOSSES = ("3.25", "2.5", "0.1")
FINAL = Final(
    metrics=tuple({"step": str(step), "loss": loss} for step, loss in enumerate(LOSSES, 1)),
    tensors={
        "model/w": Tensor("float32", (2,), b"\x00\x00\x80?\x00\x00\x00@"),
        "optimizer/m": Tensor("int8", (), b"\1"),
    },
    documents={"scheduler": {"last_epoch": 3}},
)


def test_equal_trainings_are_identical() -> None:
    """Nothing differs, and the sentence says how much was compared."""
    comparison = compare(FINAL, FINAL, 3)
    assert comparison.identical
    assert comparison.verdict == "3 losses and 2 final tensors are bit-identical"


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (replace(FINAL, tensors={**FINAL.tensors, "model/w": Tensor("float32", (2,), b"\x01\x00\x80?\x00\x00\x00@")}),
         "model/w differs in 1 of 8 bytes"),
        (replace(FINAL, tensors={"model/w": FINAL.tensors["model/w"]}), "optimizer/m is in only one"),
        (replace(FINAL, tensors={**FINAL.tensors, "optimizer/m": Tensor("uint8", (), b"\1")}), "is int8"),
        (replace(FINAL, metrics=(*FINAL.metrics[:2], {"step": "3", "loss": "0.10000000000000002"})), "loss of step 3"),
        (replace(FINAL, metrics=FINAL.metrics[:2]), "has 2 rows for 3 steps, without step 3"),
        (replace(FINAL, metrics=(*FINAL.metrics, FINAL.metrics[1])), "step 2 more than once"),
        (replace(FINAL, documents={"scheduler": {"last_epoch": 4}}), "beside the tensors differs in scheduler"),
    ],
)  # fmt: skip
def test_every_difference_is_found_and_named(other: Final, says: str) -> None:
    """A flipped bit, a missing tensor, another dtype, a loss in its last digit, a step twice or left out."""
    comparison = compare(FINAL, other, 3)
    assert not comparison.identical
    assert says in " ".join(comparison.differences)
    assert comparison.verdict.startswith("NOT identical")


def test_nothing_to_compare_is_not_identical() -> None:
    """Two empty trainings prove nothing."""
    empty = Final(metrics=(), tensors={}, documents={})
    assert not compare(empty, empty, 0).identical


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kills", [3, 5, 8])
def test_kills_are_spread_and_one_is_inside_a_save(kills: int, seed: int) -> None:
    """However chance falls: in order, within the run, every kind in its turn."""
    targets = plan(300, kills, 10, random.Random(seed))
    assert [target.kind for target in targets] == [KINDS[i % len(KINDS)] for i in range(kills)]
    assert "save" in {target.kind for target in targets}
    steps = [target.step for target in targets]
    assert steps == sorted(steps)
    assert steps[0] > 10
    assert steps[-1] < 300


@pytest.mark.parametrize(("steps", "kills"), [(300, 2), (40, 3)])
def test_too_few_kills_or_too_few_steps_are_refused(steps: int, kills: int) -> None:
    """Less than three kills leave the kill inside a save out; too few steps leave no room."""
    with pytest.raises(UsageError):
        plan(steps, kills, 10, random.Random(0))
