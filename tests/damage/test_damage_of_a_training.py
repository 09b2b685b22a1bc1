"""Damage to the files of a real training, on a real disk: the run goes on from the newest sound checkpoint, exactly.

Rule 3: every byte is covered by a digest in the manifest; nothing unverified is restored.
Rule 4: restore refuses rather than guesses, says why, tries the next.
"""

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast
from holdfast.decide.retention import Keep
from holdfast.engine.checkpoint import committed
from holdfast.engine.restore import resume
from holdfast.errors import NoneUsable
from holdfast.settings import Settings
from holdfast.state.training import TrainingState
from holdfast.storage.digest import xxh3
from holdfast.storage.local import LocalStore

pytestmark = pytest.mark.slow

EPOCHS, STEPS_PER_EPOCH = 3, 3
CONFIG = {"lr": 0.05}


def build() -> dict[str, Any]:
    """Build a training before its first step: dropout, momentum, shuffled data."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1))
    x = torch.linspace(-1, 1, 8 * 24).reshape(24, 8)
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=CONFIG["lr"]),
        "data": holdfast.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1)), batch_size=8, shuffle=True, seed=1),
    }


def train(folder: Path, epochs: int = EPOCHS) -> tuple[list[int], dict[str, torch.Tensor]]:
    """Train from wherever the run stands; return the steps that were taken, and the weights."""
    state = build()
    settings = Settings(every_steps=1, keep=Keep(last=4))
    steps = []
    with holdfast.Run(folder, state=state, config=CONFIG, settings=settings) as run:
        for x, y in run.batches(state["data"], epochs=epochs):
            steps.append(run.step + 1)
            loss = torch.nn.functional.mse_loss(state["model"](x).squeeze(1), y)
            state["optimizer"].zero_grad()
            loss.backward()
            state["optimizer"].step()
            run.report(loss=loss)
    return steps, {name: value.clone() for name, value in state["model"].state_dict().items()}


@dataclass(frozen=True, slots=True)
class Trained:
    """A run that stopped after two epochs, and what an uninterrupted one comes to."""

    folder: Path
    weights: dict[str, torch.Tensor]
    losses: str


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train twice: once to the end, once for two epochs."""
    root = tmp_path_factory.mktemp("runs")
    whole, weights = train(root / "whole")
    assert whole == list(range(1, EPOCHS * STEPS_PER_EPOCH + 1))
    train(root / "part", epochs=2)
    store = LocalStore(root / "whole")
    losses = store.read(committed(store)[-1].folder + "metrics.csv").decode()
    return Trained(root / "part", weights, losses)


def checkpoint_folders(folder: Path) -> list[Path]:
    """The run's checkpoints, oldest first."""
    return sorted((folder / "checkpoints").iterdir())


def zeros_in_model(newest: Path, older: Path) -> Path:
    """Overwrite a page of tensors with zeros."""
    file = newest / "model.r00000.safetensors"
    with file.open("r+b") as opened:
        opened.seek(4096)
        opened.write(bytes(2048))
    return file


def optimizer_gone(newest: Path, older: Path) -> Path:
    """Delete the optimizer's file."""
    file = newest / "optimizer.r00000.safetensors"
    file.unlink()
    return file


def documents_cut(newest: Path, older: Path) -> Path:
    """Cut the documents short."""
    file = newest / "documents.r00000.json"
    file.write_bytes(file.read_bytes()[:-1])
    return file


def manifest_of_another(newest: Path, older: Path) -> Path:
    """Replace the manifest by an older one's."""
    file = newest / "manifest.json"
    shutil.copy(older / "manifest.json", file)
    return file


def last_bit_of_optimizer(newest: Path, older: Path) -> Path:
    """Flip the last bit of the file that is read last: everything else was restored by then."""
    file = newest / "optimizer.r00000.safetensors"
    raw = file.read_bytes()
    file.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    return file


DAMAGES = [zeros_in_model, optimizer_gone, documents_cut, manifest_of_another, last_bit_of_optimizer]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_leaves_no_trace_in_the_state(
    damage: Callable[[Path, Path], Path], trained: Trained, tmp_path: Path
) -> None:
    """The state is bit for bit the older checkpoint's, also where the damaged one was restored half way."""
    folder = Path(shutil.copytree(trained.folder, tmp_path / "run"))
    *_, older, newest = checkpoint_folders(folder)
    file = damage(newest, older)
    store = LocalStore(folder)
    state, expected = build(), build()
    restored = resume(store, xxh3, TrainingState(state), lambda checkpoint, documents: None)
    assert restored is not None
    assert str(restored.checkpoint.id) == older.name
    assert restored.refused[0][0] == newest.name
    assert str(file.relative_to(folder)) in restored.refused[0][1]
    shutil.rmtree(newest)
    assert resume(store, xxh3, TrainingState(expected), lambda checkpoint, documents: None) is not None
    for part in ("model", "optimizer"):
        found, wanted = state[part].state_dict(), expected[part].state_dict()
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert state["data"].state_dict() == expected["data"].state_dict()


def test_training_goes_on_exactly_from_the_older_one(
    trained: Trained, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The final weights and every loss are those of an undisturbed run; the resume line says what was refused."""
    folder = Path(shutil.copytree(trained.folder, tmp_path / "run"))
    *_, older, newest = checkpoint_folders(folder)
    file = zeros_in_model(newest, older)
    with caplog.at_level(logging.INFO, logger="holdfast"):
        steps, weights = train(folder)
    step = int(older.name.partition("-")[0])
    assert step < 6
    assert steps == list(range(step + 1, 10))
    torch.testing.assert_close(weights, trained.weights, rtol=0, atol=0)
    store = LocalStore(folder)
    assert store.read(committed(store)[-1].folder + "metrics.csv").decode() == trained.losses
    (line,) = [record.getMessage() for record in caplog.records if "resumed from" in record.getMessage()]
    assert f"attempt 2 resumed from {older.name} (step {step}): bit-exact. Refused: {newest.name} (" in line
    assert str(file.relative_to(folder)) in line


def test_a_run_without_a_sound_checkpoint_stops(
    trained: Trained, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It does not start fresh: exit code 78, every checkpoint listed, and no file of them changed."""
    folder = Path(shutil.copytree(trained.folder, tmp_path / "run"))
    for checkpoint in checkpoint_folders(folder):
        documents_cut(checkpoint, checkpoint)
    before = {file: file.read_bytes() for file in (folder / "checkpoints").rglob("*") if file.is_file()}
    with pytest.raises(NoneUsable) as refusal:
        train(folder)
    assert refusal.value.code == 78
    assert {file: file.read_bytes() for file in (folder / "checkpoints").rglob("*") if file.is_file()} == before
    said = capfd.readouterr().err
    for checkpoint in checkpoint_folders(folder):
        assert f"{checkpoint.name}/documents.r00000.json: has" in said
