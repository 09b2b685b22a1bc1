"""A script that changed since its last checkpoint, or holds what cannot be stored: told, never guessed."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast.errors import EXIT_DO_NOT_RETRY, StateMismatch, Stop, UnknownState

from .kills import Sight

pytestmark = pytest.mark.slow


def model(width: int = 4, *, bias: bool = True, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A model of two layers."""
    return torch.nn.Sequential(
        torch.nn.Linear(3, width, bias=bias, dtype=dtype), torch.nn.Linear(width, 1, dtype=dtype)
    )


def state(of: torch.nn.Module | None = None, **more: Any) -> dict[str, Any]:
    """A model and its optimizer."""
    net = of or model()
    return {"model": net, "optimizer": torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), **more}


def saved(store: Path, parts: dict[str, Any]) -> None:
    """Train two steps and finish."""
    with holdfast.Run(store, state=parts) as run:
        for _ in range(2):
            for part in parts.values():
                if isinstance(part, torch.optim.Optimizer):
                    for group in part.param_groups:
                        for parameter in group["params"]:
                            parameter.grad = torch.ones_like(parameter)
                    part.step()
            run.boundary()


def frozen_optimizer() -> dict[str, Any]:
    """The same model, of which only one layer is trained."""
    net = model()
    return {"model": net, "optimizer": torch.optim.SGD(net[0].parameters(), 0.1, momentum=0.9)}


def tied() -> dict[str, Any]:
    """A model whose two layers share one weight."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    net[1].weight = net[0].weight
    return state(net)


def loader(samples: int) -> holdfast.DataLoader:
    """A loader over so many samples."""
    return holdfast.DataLoader(TensorDataset(torch.zeros(samples, 3)), batch_size=2)


MISFITS: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[], dict[str, Any]], list[str]]] = {
    "another shape": (
        state,
        lambda: state(model(5)),
        ["model/0.weight is float32[4, 3] in the checkpoint, float32[5, 3] in the run"],
    ),
    "another dtype": (
        state,
        lambda: state(model(dtype=torch.float64)),
        ["model/0.bias is float32[4] in the checkpoint, float64[4] in the run"],
    ),
    "a tensor that is gone": (
        state,
        lambda: state(model(bias=False)),
        ["model/0.bias is in the checkpoint, not in the run"],
    ),
    "a tensor that is new": (
        lambda: state(model(bias=False)),
        state,
        ["model/0.bias is in the run, not in the checkpoint"],
    ),
    "a part that is gone, and a part that is new": (
        lambda: state(ema=model()),
        lambda: state(critic=model()),
        ["part 'ema' is in the checkpoint, not in the run", "part 'critic' is in the run, not in the checkpoint"],
    ),
    "another kind of part": (
        lambda: state(extra={"a": 1}),
        lambda: state(extra=torch.Generator()),
        ["'extra' is a dict in the checkpoint, a generator in the run"],
    ),
    "fewer parameters in the optimizer": (
        state,
        frozen_optimizer,
        ["optimizer/param_groups[0] has 4 parameters in the checkpoint, 2 in the run"],
    ),
    "weights that are no longer shared": (
        tied,
        lambda: state(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))),
        ["model/1.weight shares its memory with another tensor in only one of checkpoint and run"],
    ),
    "another data set": (
        lambda: state(data=loader(8)),
        lambda: state(data=loader(10)),
        ["data: the data loader cannot go on from its saved position: the length of the dataset was 8, is 10"],
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_state_that_does_not_fit_is_refused_and_every_disagreement_named(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both sides are shown, the checkpoint is named, and neither it nor the run's own tensors are touched."""
    before, now, problems = MISFITS[name]
    saved(tmp_path, before())
    parts = now()
    own = {name: value.clone() for name, value in parts["model"].state_dict().items()}
    committed = Sight(tmp_path).committed()
    with pytest.raises(StateMismatch) as caught, holdfast.Run(tmp_path, state=parts):
        pytest.fail("it began to train")
    for problem in problems:
        assert problem in str(caught.value)
        assert problem in capsys.readouterr().err or len(problems) > 1
    assert f"checkpoint {committed[-1]} does not fit this run's state" in str(caught.value)
    assert Sight(tmp_path).committed() == committed
    if name != "another data set":  # that shows only when everything else has been restored
        assert all(torch.equal(own[name], value) for name, value in parts["model"].state_dict().items())


UNSTORABLE: dict[str, tuple[dict[str, Any], str]] = {
    "a lock": ({"guard": threading.Lock()}, "state[guard] is a lock"),
    "a function": ({"rule": len}, "state[rule] is a builtin_function_or_method"),
    "a number, which could not be put back": ({"best": 0.5}, "state[best] is a float"),
    "something deep inside": ({"notes": {"runs": [1, {"x": object()}]}}, "state[notes.runs[1].x] is a object"),
    "a sparse tensor": (
        {"notes": {"graph": torch.eye(2).to_sparse_coo()}},
        "state[notes.graph] is a torch.sparse_coo torch.float32 tensor",
    ),
}


@pytest.mark.parametrize("name", UNSTORABLE)
def test_what_cannot_be_stored_is_refused_with_its_path_before_anything_is_trained(tmp_path: Path, name: str) -> None:
    """The message says where it stands, what it is, and what to do instead; the store stays empty."""
    parts, message = UNSTORABLE[name]
    with pytest.raises(UnknownState) as caught, holdfast.Run(tmp_path / "run", state=state(**parts)):
        pytest.fail("it began to train")
    assert message in str(caught.value)
    assert ";" in str(caught.value), "it says what to do"
    assert isinstance(caught.value, Stop)
    assert caught.value.code == EXIT_DO_NOT_RETRY
    assert not (tmp_path / "run").exists()


class Broken(Exception):
    """Ends a training in the midst."""


def test_a_plain_shuffling_loader_is_warned_of_and_lowers_the_level(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever uses it is told before any work is done, and at the resume what that means."""
    caplog.set_level(logging.INFO, "holdfast")
    data = DataLoader(TensorDataset(torch.arange(16.0)), batch_size=2, shuffle=True)

    def break_off() -> None:
        with holdfast.Run(tmp_path, state=state()) as run:
            batches = iter(run.batches(data, epochs=1))
            with pytest.warns(UserWarning, match=r"use holdfast\.DataLoader"):
                next(batches)
            run.save()
            next(batches)
            raise Broken

    with pytest.raises(Broken):
        break_off()
    with holdfast.Run(tmp_path, state=state()) as run:
        assert run.step == 1
        with pytest.warns(UserWarning, match="another shuffle"):
            assert sum(1 for _ in run.batches(data, epochs=1)) == 7
    assert "full state, because the rest of an epoch of this DataLoader is another shuffle" in caplog.text
