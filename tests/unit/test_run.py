"""The loop that a script writes: where it ends, and where it goes on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import holdfast

pytestmark = pytest.mark.slow


def training(folder: Path) -> tuple[holdfast.Run, holdfast.DataLoader]:
    """Build a run over ten batches per epoch."""
    loader = holdfast.DataLoader(TensorDataset(torch.arange(20.0)), batch_size=2, shuffle=True, seed=0)
    return holdfast.Run(folder, state={"weights": torch.zeros(1), "data": loader}), loader


def consumed(folder: Path, leave_after: int | None = None, **asked: Any) -> tuple[list[list[float]], int]:
    """Go over the batches as asked; return what came, and the step at the end."""
    run, loader = training(folder)
    batches = []
    with run:
        for (batch,) in run.batches(loader, **asked):
            batches.append(batch.tolist())
            if len(batches) == leave_after:
                break
    return batches, run.step


def test_steps_end_a_loop_and_more_steps_go_on(tmp_path: Path) -> None:
    """By steps: across epochs to the very step, none at a restart, and on from there when more are asked for."""
    whole, step = consumed(tmp_path / "whole", steps=25)
    assert (len(whole), step) == (25, 25)
    first, step = consumed(tmp_path / "parts", steps=13)
    assert (len(first), step) == (13, 13)
    assert consumed(tmp_path / "parts", steps=13) == ([], 13)
    rest, step = consumed(tmp_path / "parts", steps=25)
    assert step == 25
    assert first + rest == whole


def test_whichever_comes_first_ends_the_loop(tmp_path: Path) -> None:
    """Epochs and steps together."""
    assert consumed(tmp_path / "a", epochs=1, steps=25)[1] == 10
    assert consumed(tmp_path / "b", epochs=2, steps=15)[1] == 15


def test_a_batch_that_a_loop_was_left_in_counts(tmp_path: Path) -> None:
    """After a break the next loop goes on with the next batch, and the step count knows of both."""
    whole, _ = consumed(tmp_path / "whole", epochs=1)
    run, loader = training(tmp_path / "left")
    batches = []
    with run:
        for (batch,) in run.batches(loader):
            batches.append(batch.tolist())
            if len(batches) == 3:
                break
        assert run.step == 2
        for (batch,) in run.batches(loader):
            batches.append(batch.tolist())
            if len(batches) == 4:
                assert run.step == 3
        assert run.step == 10
    assert batches == whole


def test_a_loop_left_for_good_is_saved_with_its_last_batch(tmp_path: Path) -> None:
    """The final checkpoint counts the batch in hand, so a restart goes on with the next one."""
    whole, _ = consumed(tmp_path / "whole", epochs=1)
    first, step = consumed(tmp_path / "left", leave_after=4, epochs=1)
    assert step == 4
    rest, step = consumed(tmp_path / "left", epochs=1)
    assert first + rest == whole
    assert step == 10


@pytest.mark.parametrize("before", [True, False], ids=["break before training", "break behind training"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_break_counts_the_batch_in_hand_only_if_it_was_trained_on(
    tmp_path: Path, before: bool, accumulate: int
) -> None:
    """`if run.step >= n: break` may stand on either side of the training: no sample is skipped, none comes twice."""
    trained: list[float] = []
    for limit in (2, 4, 10):
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        loader = holdfast.DataLoader(TensorDataset(torch.arange(20.0)), batch_size=1, shuffle=True, seed=0)
        with holdfast.Run(tmp_path, state={"weight": weight, "optimizer": optimizer, "data": loader}) as run:
            for (batch,) in run.batches(loader, epochs=1, accumulate=accumulate):
                if before and run.step >= limit:
                    break
                trained += batch.tolist()
                (weight * batch).sum().backward()
                if not run.accumulating:
                    optimizer.step()
                    optimizer.zero_grad()
                if not before and run.step + (not run.accumulating) >= limit:
                    break
    order = holdfast.DataLoader(TensorDataset(torch.arange(20.0)), batch_size=1, shuffle=True, seed=0)
    expected = [float(batch[0]) for batch in order][: len(trained)]
    assert trained == expected
    assert len(trained) == 10 * accumulate
