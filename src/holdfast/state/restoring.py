"""A checkpoint's parts on their way back: compared with the run's, given memory, handed to their owners."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..errors import StateMismatch, UsageError
from ..spec import encoding
from ..spec.leaves import Leaf
from .parts import ModulePart, Part, PlainPart, TensorPart
from .tensors import empty, fits, is_plain_memory, memory_of, unpacker


class Stored:
    """One part as it stands in a checkpoint, and its tensors as they arrive."""

    def __init__(self, name: str, document: Mapping[str, Any], leaves: Sequence[Leaf], *, allow_pickle: bool) -> None:
        self.name = name
        self.kind: str = document["kind"]
        self._packed = document["tree"]
        self._leaves = {leaf.name: leaf for leaf in leaves}
        self._tensors: dict[str, torch.Tensor] = {}
        self._allow_pickle = allow_pickle

    def compare(self, part: Part, own: Any, own_leaves: Sequence[Leaf]) -> list[str]:
        """List every disagreement with the run's own part: kind, tensors missing, extra, or of another shape."""
        if self.kind != part.kind:
            return [f"{self.name!r} is a {self.kind} in the checkpoint, a {part.kind} in the run"]
        if isinstance(part, PlainPart):
            return []  # its contents are replaced, whatever they are
        mine = {leaf.name: leaf for leaf in own_leaves}
        problems = [
            f"{self.name}/{name} is {_show(self._leaves[name])} in the checkpoint, {_show(mine[name])} in the run"
            for name in self._leaves
            if name in mine and mine[name] != self._leaves[name]
        ]
        if isinstance(part, ModulePart | TensorPart):
            problems += _only("checkpoint", "run", self.name, self._packed, own)
        elif isinstance(own, dict) and "param_groups" in own:
            problems += _compare_groups(self.name, self._packed["param_groups"], own["param_groups"])
        return problems

    def give_memory(self, leaf: Leaf, place: torch.Tensor | None) -> torch.Tensor:
        """Decide where a leaf's bytes are read to: its own place where that is plain memory, else new memory."""
        tensor = place if place is not None and is_plain_memory(place) else empty(leaf)
        self._tensors[leaf.name] = tensor if place is None else place
        return tensor

    def tree(self) -> Any:
        """The restored tree, with its tensors."""
        handler = unpacker(self._tensors.__getitem__, allow_pickle=self._allow_pickle)
        return encoding.unpack(self._packed, handler)


class Plan:
    """The `RestorePlan` port over a torch state."""

    def __init__(self, stored: Mapping[str, Stored], parts: Mapping[str, Part], after: Callable[[], None]) -> None:
        self._stored = stored
        self._parts = parts
        self._after = after
        self._places = {name: parts[name].places() if name in parts else {} for name in stored}

    def target(self, part: str, leaf: Leaf) -> "LeafTarget":
        """The place for one leaf."""
        place = self._places[part].get(leaf.name)
        if place is not None and not fits(place, leaf):
            place = None
        return LeafTarget(self._stored[part].give_memory(leaf, place), place)

    def load(self) -> None:
        """Hand every part to its owner, then gradients, then RNG."""
        for name, stored in self._stored.items():
            if name in self._parts:
                put_back(name, self._parts[name], stored)
        self._after()


class LeafTarget:
    """The `Target` port: the tensor's own memory, or host memory that is copied on to a device."""

    def __init__(self, memory: torch.Tensor, place: torch.Tensor | None) -> None:
        self._memory = memory
        self._place = place

    def buffer(self) -> memoryview:
        """The bytes to fill."""
        return memory_of(self._memory)

    def filled(self) -> None:
        """Copy on to the tensor where it lies elsewhere."""
        if self._place is not None and self._place is not self._memory:
            with torch.no_grad():
                self._place.copy_(self._memory)


def put_back(name: str, part: Part, stored: Stored) -> None:
    """Hand one part to its owner. Raises: StateMismatch with what the owner says against it."""
    try:
        part.put_back(stored.tree())
    except UsageError as error:
        raise StateMismatch("", [f"{name}: {error}"]) from error


def _only(here: str, there: str, name: str, stored: Any, own: Any) -> list[str]:
    if not isinstance(stored, dict) or not isinstance(own, dict) or "$tensor" in stored:
        return []
    problems = [f"{name}/{key} is in the {here}, not in the {there}" for key in stored.keys() - own.keys()]
    problems += [f"{name}/{key} is in the {there}, not in the {here}" for key in own.keys() - stored.keys()]
    for key in stored.keys() & own.keys():
        if _shares(stored[key], key) != _shares(own[key], key):
            problems.append(f"{name}/{key} shares its memory with another tensor in only one of checkpoint and run")
    return sorted(problems)


def _shares(packed: Any, key: str) -> bool:
    return isinstance(packed, dict) and packed.get("$tensor", key) != key


def _compare_groups(name: str, stored: Sequence[Any], own: Sequence[Any]) -> list[str]:
    if len(stored) != len(own):
        return [f"{name} has {len(stored)} parameter groups in the checkpoint, {len(own)} in the run"]
    problems = []
    for i, (old, new) in enumerate(zip(stored, own, strict=True)):
        if len(old["params"]) != len(new["params"]):
            problems.append(
                f"{name}/param_groups[{i}] has {len(old['params'])} parameters in the checkpoint, "
                f"{len(new['params'])} in the run"
            )
    return problems


def _show(leaf: Leaf) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"
