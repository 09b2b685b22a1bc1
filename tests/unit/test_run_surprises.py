"""What scripts do that nobody asked them to, and what has to come of it."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import holdfast
from holdfast.engine.checkpoint import committed
from holdfast.errors import UnknownState, UsageError
from holdfast.storage.local import LocalStore

pytestmark = pytest.mark.slow


def numbers(count: int = 20, **options: Any) -> holdfast.DataLoader:
    """A loader of numbers, two at a time."""
    return holdfast.DataLoader(TensorDataset(torch.arange(float(count))), **{"batch_size": 2, **options})


def test_parameters_in_a_list_stay_the_ones_the_optimizer_holds(tmp_path: Path) -> None:
    """They are filled where they are; a list of new tensors would leave the optimizer stepping the old ones."""

    def train(steps: int) -> tuple[list[float], bool]:
        weight = torch.nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        held = [weight]
        loader = numbers()
        with holdfast.Run(tmp_path, state={"params": held, "optimizer": optimizer, "data": loader}) as run:
            for (batch,) in run.batches(loader, steps=steps):
                optimizer.zero_grad()
                (weight * batch).sum().backward()
                optimizer.step()
        return weight.tolist(), held[0] is weight and weight.requires_grad

    first, _ = train(3)
    again, same = train(3)
    assert again == first
    assert same


def test_the_final_state_is_saved_whatever_changed_it(tmp_path: Path) -> None:
    """Code behind the last boundary, like a last averaging, is part of what training came to."""
    for limit in (2, 2):
        model, loader = torch.nn.Linear(1, 1), numbers()
        with holdfast.Run(
            tmp_path, state={"model": model, "data": loader}, settings=holdfast.Settings(every_steps=1)
        ) as run:
            ran = len(list(run.batches(loader, steps=limit)))
            if ran:
                model.weight.data.fill_(7.0)
    assert ran == 0
    assert model.weight.item() == 7.0


def test_the_best_checkpoint_is_the_one_that_was_evaluated(tmp_path: Path) -> None:
    """A value reported behind an epoch belongs to the step that was evaluated, not to the next one saved."""
    values = [9.0, 1.0, 5.0, 7.0, 8.0, 6.0]
    keep = holdfast.Keep(last=2, best=1, metric="val")
    loader = numbers(10)
    with holdfast.Run(
        tmp_path, state={"w": torch.zeros(1), "data": loader}, settings=holdfast.Settings(every_steps=5, keep=keep)
    ) as run:
        while run.epoch < len(values):
            for _ in run.batches(loader):
                pass
            run._boundary.wait_for_slots(60.0, lambda text: None, every=True)
            run.report(val=values[run.epoch - 1])
    assert [c.step for c in committed(LocalStore(tmp_path))] == [10, 30, 30]


@pytest.mark.parametrize("config", [3, {"dtype": torch.float32}])
def test_a_config_that_cannot_be_stored_is_said_aloud(
    tmp_path: Path, config: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process would end with code 78; it must not do so in silence."""
    with pytest.raises(UnknownState):
        holdfast.Run(tmp_path, state={"w": [1]}, config=config)
    assert "holdfast: config" in capsys.readouterr().err


def test_what_becomes_unstorable_in_training_is_said_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same, when it happens at a save."""
    notes: dict[str, Any] = {}

    def train() -> None:
        with holdfast.Run(tmp_path, state={"notes": notes}, settings=holdfast.Settings(every_steps=2)) as run:
            run.boundary()
            notes["f"] = lambda: 1
            run.boundary()

    with pytest.raises(UnknownState):
        train()
    assert "holdfast: state[notes.f] is a function" in capsys.readouterr().err


def test_a_loader_without_batches_is_an_error(tmp_path: Path) -> None:
    """By steps, it would be asked for ever."""
    loader = numbers(3, batch_size=4, drop_last=True)
    with (
        pytest.raises(UsageError, match="no batches"),
        holdfast.Run(tmp_path, state={"data": loader}) as run,
    ):
        list(run.batches(loader, steps=3))


@pytest.mark.parametrize("asked", [{"epochs": -1}, {"steps": 2.5}, {"accumulate": 0}, {"epochs": "3"}])
def test_counts_that_make_no_sense_are_named(tmp_path: Path, asked: dict[str, Any]) -> None:
    """Before a batch is fetched."""
    loader = numbers()
    with pytest.raises(UsageError, match=next(iter(asked))), holdfast.Run(tmp_path, state={"data": loader}) as run:
        list(run.batches(loader, **asked))


@pytest.mark.parametrize(
    "state",
    [
        {"m": {"x": torch.nn.Linear(1, 1)}, "m.x": [1]},
        {"nets": {"../x": torch.nn.Linear(1, 1)}},
        {"nets": {"a/b": torch.nn.Linear(1, 1)}},
        {"nets": {1: torch.nn.Linear(1, 1), "1": torch.nn.Linear(1, 1)}},
    ],
)
def test_parts_get_names_of_their_own_that_can_be_files(tmp_path: Path, state: dict[str, Any]) -> None:
    """Two parts of one name, or a name that leads elsewhere, are refused before anything is touched."""
    with pytest.raises(UsageError, match="called"):
        holdfast.Run(tmp_path / "run", state=state)
    assert not (tmp_path / "run").exists()


def test_a_resume_that_is_not_as_hoped_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Scripts that show warnings only still show what was refused and what lowered the level."""
    for _ in range(2):
        with caplog.at_level(logging.WARNING, "holdfast"), holdfast.Run(tmp_path, state={"w": [1]}) as run:
            run.boundary()
    assert "resumed from 0000000001-a000001 (step 1): full state, because no loader is known" in caplog.text


def test_a_run_that_is_not_open_says_how_to_open_it(tmp_path: Path) -> None:
    """Training outside the block would never be saved."""
    run = holdfast.Run(tmp_path / "run", state={"w": [1]})
    with pytest.raises(UsageError, match=r"with holdfast\.Run"):
        run.boundary()
    with pytest.raises(UsageError, match=r"with holdfast\.Run"):
        next(run.batches(numbers(), epochs=1))


def test_a_boundary_inside_batches_is_refused(tmp_path: Path) -> None:
    """It would count every step twice."""
    loader = numbers()
    with holdfast.Run(tmp_path, state={"data": loader}) as run:
        for _ in run.batches(loader, steps=1):
            with pytest.raises(UsageError, match=r"leave run\.boundary"):
                run.boundary()


def test_a_state_that_is_no_dict_is_refused(tmp_path: Path) -> None:
    """With what to give instead."""
    with pytest.raises(UsageError, match="state is a list; give a dict"):
        holdfast.Run(tmp_path, state=[torch.nn.Linear(1, 1)])  # type: ignore[arg-type]
