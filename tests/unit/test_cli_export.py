"""`export`: which files, which form, and that a folder appears whole or not at all."""

import dataclasses
import importlib.util
import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from holdfast import wiring
from holdfast.engine.checkpoint import open_checkpoint
from holdfast.engine.export import Source, export
from holdfast.errors import Unavailable, UsageError
from holdfast.spec import encoding
from holdfast.state.export import write_torch_file
from holdfast.storage.digest import xxh3
from holdfast.storage.local import LocalStore
from holdfast.storage.memory import MemoryStore
from tests.made import Tensor, damage, floats, make_checkpoint, make_run
from tests.stand_ins import Hindered, Operation
from tests.terminal import Terminal, holdfast


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A run's store without checkpoints."""
    return make_run(tmp_path / "run")


def _files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_checkpoint_becomes_plain_files(store: LocalStore, tmp_path: Path) -> None:
    """Each part has its file, everything that is known of the step stands beside, and the facts name them all."""
    plain = {"scheduler": {"last_epoch": 20, "span": (0.9, 0.99)}}
    make_checkpoint(store, 10)
    make_checkpoint(
        store,
        20,
        leaves={"model": {"weight": Tensor("float64", (2, 2), struct.pack("<4d", 1, 2, 3, 4)), "bias": floats(5)}},
        plain=plain,
        config={"lr": 0.1},
        metrics={"loss": 0.5},
    )
    make_checkpoint(store, 30)
    said = holdfast("export", store.url, tmp_path / "new" / "out", "--checkpoint", "20", "--json")
    assert said.code == 0
    out = tmp_path / "new" / "out"
    names = ["model.safetensors", "scheduler.json", "train_state.json", "config.yaml", "metrics.csv"]
    assert [entry["file"] for entry in said.facts["files"]] == names
    assert [entry["file_bytes"] for entry in said.facts["files"]] == [(out / name).stat().st_size for name in names]
    assert _files(out) == set(names)
    assert _files(tmp_path / "new") == {"out"}
    loaded = load_file(out / "model.safetensors")
    assert loaded["weight"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert loaded["bias"].tolist() == [5.0]
    assert encoding.unpack(json.loads((out / "scheduler.json").read_text())) == plain["scheduler"]
    assert (out / "config.yaml").read_text() == "lr: 0.1\n"
    assert (out / "metrics.csv").read_text() == "step,loss\n20,0.5\n"
    state = json.loads((out / "train_state.json").read_text())
    expected = {"checkpoint": "0000000020-a000001", "attempt": 1, "step": 20, "samples": 80, "metrics": {"loss": 0.5}}
    assert expected.items() <= state.items()
    assert state["versions"]["torch"] == "2.6.0"
    assert set(state["rng"]) == {"python", "torch"}
    assert state["data"]["level"] == "bit-exact"


def test_the_page_names_the_files_and_the_bar_is_for_terminals(store: LocalStore, tmp_path: Path) -> None:
    """People see what was written; progress goes to standard error."""
    make_checkpoint(store, 10)
    said = holdfast("export", store.url, tmp_path / "out", stderr=Terminal())
    assert "model.safetensors" in said.out
    assert str(tmp_path / "out") in said.out
    assert "0000000010-a000001" in said.err


def test_nothing_is_written_for_config_and_metrics_that_are_not_there(store: LocalStore, tmp_path: Path) -> None:
    """A run without config and metrics gets no empty files."""
    make_checkpoint(store, 10)
    holdfast("export", store.url, tmp_path / "out")
    assert _files(tmp_path / "out") == {"model.safetensors", "train_state.json"}


def test_a_dtype_that_safetensors_lacks_goes_through_torch(store: LocalStore, tmp_path: Path) -> None:
    """A complex buffer cannot stand in a plain safetensors file under its own type, so the module becomes a .pt."""
    make_checkpoint(store, 10, leaves={"model": {"z": Tensor("complex64", (1,), struct.pack("<2f", 1, 2))}})
    holdfast("export", store.url, tmp_path / "out")
    loaded = torch.load(tmp_path / "out" / "model.pt", weights_only=True)
    assert torch.equal(loaded["z"], torch.tensor([1 + 2j]))


def test_format_safetensors_needs_no_torch_at_all(store: LocalStore, tmp_path: Path) -> None:
    """What would be a .pt becomes bytes in safetensors, and JSON that says what they are."""
    make_checkpoint(store, 10, leaves={"model": {"z": Tensor("complex64", (1,), struct.pack("<2f", 1, 2))}})
    said = holdfast("export", store.url, tmp_path / "out", "--format", "safetensors", "--json")
    assert said.facts["notes"] == []
    assert _files(tmp_path / "out") == {"model.safetensors", "model.json", "train_state.json"}
    assert load_file(tmp_path / "out" / "model.safetensors")["z"].numpy().tobytes() == struct.pack("<2f", 1, 2)
    assert json.loads((tmp_path / "out" / "model.json").read_text()) == {"z": {"$tensor": "z"}}


def test_without_torch_the_same_is_done_and_said(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without torch nobody is left without the optimizer's tensors."""
    make_checkpoint(store, 10, leaves={"model": {"z": Tensor("complex64", (1,), bytes(8))}})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = holdfast("export", store.url, tmp_path / "out")
    assert "torch is not installed" in said.out
    assert {"model.safetensors", "model.json"} <= _files(tmp_path / "out")


def test_a_part_called_train_state_does_not_replace_ours(store: LocalStore, tmp_path: Path) -> None:
    """The user's part gets another name, and both files are whole."""
    make_checkpoint(store, 10, plain={"train_state": {"mine": 1}})
    holdfast("export", store.url, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "part.train_state.json").read_text()) == {"mine": 1}
    assert json.loads((tmp_path / "out" / "train_state.json").read_text())["step"] == 10


def test_an_empty_folder_is_taken_and_its_name_may_be_a_link(store: LocalStore, tmp_path: Path) -> None:
    """Whoever made the folder beforehand, or linked to one, gets the files there."""
    make_checkpoint(store, 10)
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    assert holdfast("export", store.url, tmp_path / "link").code == 0
    assert "model.safetensors" in _files(tmp_path / "there")


@pytest.mark.parametrize("place", ["full", "file", "run/export", "run"])
def test_a_folder_that_is_not_free_is_refused(store: LocalStore, tmp_path: Path, place: str) -> None:
    """Not empty, a file, or inside the run: code 2, and nothing is written anywhere."""
    make_checkpoint(store, 10)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    said = holdfast("export", store.url, tmp_path / place)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_made_is_an_error(store: LocalStore, tmp_path: Path) -> None:
    """Below a file there can be no folder: one line, code 10."""
    make_checkpoint(store, 10)
    (tmp_path / "file").write_text("mine")
    said = holdfast("export", store.url, tmp_path / "file" / "out")
    assert (said.code, said.out, said.err.count("\n")) == (10, "", 1)


def test_a_damaged_checkpoint_leaves_no_folder(store: LocalStore, tmp_path: Path) -> None:
    """Found in the middle of writing: code 11, and not even a hidden folder stays."""
    checkpoint = make_checkpoint(store, 10, leaves={"model": {"weight": Tensor("uint8", (9000,), bytes(9000))}})
    damage(store, checkpoint.folder + "model.r00000.safetensors")
    said = holdfast("export", store.url, tmp_path / "out")
    assert (said.code, said.out) == (11, "")
    assert "model/weight" in said.err
    assert _files(tmp_path) == {"run"}


def test_the_folder_appears_only_when_all_is_there(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is read, nothing stands under the folder's name yet: a killed export leaves no half one."""
    make_checkpoint(store, 10, config={"lr": 0.1}, metrics={"loss": 0.5})
    seen: list[bool] = []
    opened = wiring.open_store

    def look(operation: Operation, name: str) -> None:
        seen.append((tmp_path / "out").exists())

    monkeypatch.setattr(wiring, "open_store", lambda url: Hindered(opened(url), look))
    assert holdfast("export", store.url, tmp_path / "out").code == 0
    assert len(seen) > 10
    assert not any(seen)
    assert (tmp_path / "out").is_dir()


def test_a_torch_file_that_cannot_be_written_is_an_error_of_the_storage(tmp_path: Path) -> None:
    """Whatever the operating system says against it, people get one line with the path."""
    with pytest.raises(Unavailable, match="missing"):
        write_torch_file(tmp_path / "missing" / "optimizer.pt", {"a": 1}, [], lambda leaf, into: None)


def test_tensors_cut_over_ranks_are_refused() -> None:
    """Half a tensor in a file would look like a whole one."""
    store = MemoryStore()
    opened = open_checkpoint(store, xxh3, make_checkpoint(store, 10, leaves={"model": {"weight": floats(1, 2)}}))
    (stored,) = opened.ranks[0].leaves
    rank = dataclasses.replace(opened.ranks[0], leaves=(dataclasses.replace(stored, lengths=(1,)),))
    source = Source(store, xxh3, dataclasses.replace(opened, ranks=(rank,)), lambda nbytes: None)
    with pytest.raises(UsageError, match="cut over several ranks"):
        export(source, MemoryStore(), None)
