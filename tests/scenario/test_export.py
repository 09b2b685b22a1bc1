"""A real training, exported, and every file loaded back by what people use: safetensors, torch, json."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import nn

import holdfast
from holdfast.spec import encoding
from tests import terminal


class Tied(nn.Module):
    """An embedding whose weights are the output layer's too, and a norm with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Predict a token from a token."""
        return self.head(self.norm(self.embedding(tokens)))


class Counter:
    """Something of the user's whose state holds what torch.load refuses."""

    def __init__(self) -> None:
        self.seen: Any = {"tokens": torch.arange(3), "span": range(4)}

    def state_dict(self) -> dict[str, Any]:
        """A tensor and a range."""
        return dict(self.seen)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back."""
        self.seen = state


def _training() -> dict[str, Any]:
    torch.manual_seed(0)
    model = Tied()
    optimizer = torch.optim.AdamW(
        [{"params": [model.embedding.weight]}, {"params": model.norm.parameters(), "lr": 0.1}]
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "counter": Counter()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], holdfast.DataLoader]:
    """A short training, its state at the end, and where it was saved."""
    folder = tmp_path_factory.mktemp("export")
    state = _training()
    tokens = torch.utils.data.TensorDataset(torch.arange(64) % 8)
    loader = holdfast.DataLoader(tokens, batch_size=8, shuffle=True, seed=1)
    with holdfast.Run(folder / "run", state=state, config={"lr": 0.001, "betas": (0.9, 0.99)}) as run:
        for (batch,) in run.batches(loader, epochs=1):
            loss = nn.functional.cross_entropy(state["model"](batch), batch)
            state["optimizer"].zero_grad()
            loss.backward()
            state["optimizer"].step()
            state["scheduler"].step()
            run.report(loss=loss)
    for form in ("auto", "safetensors"):
        assert terminal.holdfast("export", folder / "run", folder / form, "--format", form).code == 0
    return folder, state, loader


def _same(one: Any, other: Any) -> bool:
    """Compare nested state bit for bit, types of containers included."""
    if isinstance(one, torch.Tensor):
        equal = one.dtype == other.dtype and one.shape == other.shape
        return equal and bytes(one.detach().contiguous().numpy().data) == bytes(other.contiguous().numpy().data)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        pairs = zip(one, other, strict=True)
        return type(one) is type(other) and len(one) == len(other) and all(_same(a, b) for a, b in pairs)
    return type(one) is type(other) and one == other


def test_the_module_loads_strictly_with_tied_weights(trained: tuple[Path, dict[str, Any], Any]) -> None:
    """Every name of the state_dict is there, both names of tied weights too, with the trained bits."""
    folder, state, _ = trained
    for form in ("auto", "safetensors"):
        loaded = load_file(folder / form / "model.safetensors")
        assert _same(dict(state["model"].state_dict()), loaded)
        Tied().load_state_dict(loaded, strict=True)


def test_the_optimizer_loads_with_weights_only(trained: tuple[Path, dict[str, Any], Any]) -> None:
    """torch.load needs no trust, and a new optimizer takes the state: the next step is the same to the bit."""
    folder, state, _ = trained
    loaded = torch.load(folder / "auto" / "optimizer.pt", weights_only=True)
    assert _same(state["optimizer"].state_dict(), loaded)
    fresh = _training()["optimizer"]
    fresh.load_state_dict(loaded)
    assert _same(state["optimizer"].state_dict(), fresh.state_dict())


def test_the_optimizer_in_safetensors_is_complete(trained: tuple[Path, dict[str, Any], Any]) -> None:
    """The JSON names each tensor in its place, so that anybody can put the tree together again."""
    folder, state, _ = trained
    tensors = load_file(folder / "safetensors" / "optimizer.safetensors")
    packed = json.loads((folder / "safetensors" / "optimizer.json").read_text())
    tree = encoding.unpack(packed, lambda tag, body: tensors[body])
    assert _same(state["optimizer"].state_dict(), tree)
    assert not list((folder / "safetensors").glob("*.pt"))


def test_what_weights_only_would_refuse_is_no_pt(trained: tuple[Path, dict[str, Any], Any]) -> None:
    """A part with a range in its state is split into safetensors and JSON, in any format."""
    folder, _, _ = trained
    assert load_file(folder / "auto" / "counter.safetensors")["tokens"].tolist() == [0, 1, 2]
    packed = json.loads((folder / "auto" / "counter.json").read_text())
    assert packed == {"tokens": {"$tensor": "tokens"}, "span": {"$range": [0, 4, 1]}}


def test_parts_without_tensors_are_json(trained: tuple[Path, dict[str, Any], Any]) -> None:
    """Scheduler and loader position read back as exactly what the objects say of themselves."""
    folder, state, loader = trained
    read = {name: json.loads((folder / "auto" / f"{name}.json").read_text()) for name in ("scheduler", "loader")}
    assert _same(state["scheduler"].state_dict(), encoding.unpack(read["scheduler"]))
    assert encoding.unpack(read["loader"])["loader"] == loader.state_dict()


def test_what_is_known_of_the_step_is_there(trained: tuple[Path, dict[str, Any], Any]) -> None:
    """Counters, config and metrics of the whole run, for machines and for people."""
    folder, _, _ = trained
    told = json.loads((folder / "auto" / "train_state.json").read_text())
    assert (told["step"], told["epoch"], told["samples"], told["attempt"]) == (8, 1, 64, 1)
    assert encoding.unpack(told["config"]) == {"lr": 0.001, "betas": (0.9, 0.99)}
    assert {"python", "numpy", "torch"} <= set(told["rng"])
    assert yaml.safe_load((folder / "auto" / "config.yaml").read_text())["lr"] == 0.001
    with (folder / "auto" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == [str(step) for step in range(1, 9)]
    assert float(rows[-1]["loss"]) == told["metrics"]["loss"]
