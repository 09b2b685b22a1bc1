"""Every format version that was ever released loads, for ever."""

import json
import shutil
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.checkpoint import committed, open_checkpoint, verify
from holdfast.spec.manifest import FORMAT
from holdfast.storage.digest import xxh3
from holdfast.storage.local import LocalStore

from . import training

HERE = Path(__file__).parent
VERSIONS = [1]


def test_every_version_has_a_frozen_store() -> None:
    """The folder holds one store per format version, up to the one written today."""
    assert sorted(int(p.name.removeprefix("format-")) for p in HERE.glob("format-*") if p.is_dir()) == VERSIONS
    assert VERSIONS[-1] == FORMAT


@pytest.mark.parametrize("version", VERSIONS)
def test_frozen_checkpoints_verify(version: int) -> None:
    """Every byte of every frozen checkpoint is covered by a digest that still matches."""
    store = LocalStore(HERE / f"format-{version}")
    names = committed(store)
    assert len(names) == 3
    for name in names:
        for _ in verify(store, xxh3, open_checkpoint(store, xxh3, name), deep=True):
            pass


@pytest.mark.parametrize("version", VERSIONS)
def test_frozen_checkpoint_resumes(version: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A run resumes from the newest frozen checkpoint, tensors in an older checkpoint's file included."""
    folder = tmp_path / "run"
    shutil.copytree(HERE / f"format-{version}", folder)
    expected = json.loads((HERE / f"format-{version}.expected.json").read_text())
    state = training.build()
    state["notes"].clear()
    loader = holdfast.DataLoader(training.dataset(), batch_size=4, shuffle=True, seed=0)
    with holdfast.Run(folder, state=state, config=training.CONFIG) as run:
        assert (run.step, run.attempt) == (expected["step"], 2)
        assert list(run.batches(loader, epochs=training.EPOCHS)) == []
        weights = {name: value.tolist() for name, value in state["model"].state_dict().items()}
        assert weights == expected["weights"]
        assert state["optimizer"].state_dict()["state"][0]["exp_avg"].tolist() == expected["moment"]
        assert state["optimizer"].param_groups[0]["lr"] == expected["learning_rate"]
        assert state["notes"][3] == (1, b"x", float("inf"))
        assert state["notes"]["z"].item() == 1 + 2j
