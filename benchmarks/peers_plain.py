"""Saving with one call that writes one file."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from .contestants import Contestant, Pending, finished, remove
from .state import Trained


class OneFile:
    """Whatever blocks until it has written one file."""

    def __init__(self, state: Trained, folder: Path) -> None:
        self._state = state
        self._folder = folder

    def prepare(self) -> None:
        """Nothing to get ready."""

    def save(self, number: int) -> Pending:
        """Write the file."""
        self._write(self.place(number))
        return finished()

    def updating(self) -> AbstractContextManager[object]:
        """Nothing is in flight."""
        return nullcontext()

    def place(self, number: int) -> Path:
        """A file of its own for each save."""
        return self._folder / f"{number}.pt"

    def discard(self, number: int) -> None:
        """Remove it."""
        remove(self.place(number))

    def close(self) -> None:
        """Nothing is open."""

    def load(self, number: int) -> None:
        """Load everything, then hand it to its owners."""
        self._state.load(torch.load(self.place(number)))

    def _write(self, place: Path) -> None:
        temporary = place.with_suffix(".tmp")
        torch.save(self._state.state_dicts(), temporary)
        os.replace(temporary, place)


class InPlace(OneFile):
    """torch.save over the last save."""

    def place(self, number: int) -> Path:
        """Always the same file."""
        return self._folder / "latest.pt"

    def discard(self, number: int) -> None:
        """The next save overwrites it."""

    def _write(self, place: Path) -> None:
        torch.save(self._state.state_dicts(), place)


class Safetensors(OneFile):
    """Tensors alone, by flat name; what is no tensor would need a file of its own."""

    def place(self, number: int) -> Path:
        """A file of its own for each save."""
        return self._folder / f"{number}.safetensors"

    def load(self, number: int) -> None:
        """Load the tensors, then put them where they were."""
        flat = load_file(self.place(number))
        own = self._state.state_dicts()
        model = {name: flat[f"model/{name}"] for name in own["model"]}
        moments = {
            index: {key: flat[f"optimizer/{index}/{key}"] for key in entry}
            for index, entry in own["optimizer"]["state"].items()
        }
        self._state.load({"model": model, "optimizer": {**own["optimizer"], "state": moments}})

    def _write(self, place: Path) -> None:
        own = self._state.state_dicts()
        flat = {f"model/{name}": tensor for name, tensor in own["model"].items()}
        for index, entry in own["optimizer"]["state"].items():
            flat |= {f"optimizer/{index}/{key}": tensor for key, tensor in entry.items()}
        save_file(flat, place)


MAKERS: dict[str, Callable[[Trained, Path], Contestant]] = {
    "torch.save in place": InPlace,
    "torch.save and rename": OneFile,
    "safetensors": Safetensors,
}
