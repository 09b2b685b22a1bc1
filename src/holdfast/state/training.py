"""A training's whole state, as the `State` port: parts by name, RNG, gradients in the middle of an accumulation."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..errors import StateMismatch, UnknownState, UsageError
from ..spec import encoding
from ..spec.encoding import Unstorable
from ..spec.leaves import Leaf
from ..spec.ports import RestorePlan
from . import rng
from .feed import Feed
from .parts import FeedPart, ModulePart, StatefulPart, join, parts_of
from .restoring import Plan, Stored, put_back
from .tensors import Array, Collector, copy_to

GRADIENTS = "gradients"
LOADER = "loader"
_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")
_RESERVED = ("documents", GRADIENTS, "rank")


class TrainingState:
    """Everything named in `state`, plus what nobody has to name."""

    def __init__(self, state: Mapping[str, Any], *, allow_pickle: bool = False) -> None:
        """Find an adapter for each thing. Raises: UnknownState, UsageError for a name that cannot be a file's."""
        self._allow_pickle = allow_pickle
        if not isinstance(state, Mapping):
            raise UsageError(f"state is a {type(state).__name__}; give a dict of names to what training changes")
        self._late: dict[str, Stored] = {}
        self._parts = join(parts_of(str(name), value) for name, value in state.items())
        for name in (*state, *self._parts):
            if not isinstance(name, str) or not _NAME.match(name) or name in _RESERVED:
                raise UsageError(
                    f"state has a part called {name!r}: use letters, digits, '_', '-' and '.', "
                    f"and none of {', '.join(_RESERVED)}"
                )
        self._steps = 0
        self.before_step(self._count_step)
        self.with_gradients = False
        """Whether captures hold the gradients accumulated so far."""

    @property
    def compiled(self) -> dict[str, bool]:
        """Which modules go through torch.compile."""
        return {name: part.compiled for name, part in self._parts.items() if isinstance(part, ModulePart)}

    @property
    def feeds(self) -> list[Feed]:
        """The loaders whose position is part of the state."""
        return [part.feed for part in self._parts.values() if isinstance(part, FeedPart)]

    def feed(self, source: Any) -> Feed:
        """Return the feed over a loader. One that nobody put into `state` is added, and moved to where it was.

        Raises: StateMismatch when the checkpoint's position does not fit it; UsageError.
        """
        for part in self._parts.values():
            if isinstance(part, FeedPart) and part.source is source:
                return part.feed
        if LOADER in self._parts:
            raise UsageError(
                "run.batches is given another loader than before: give it the same object each time, or, for a second "
                f"one, put both into state under names of their own (not {LOADER!r})"
            )
        part = FeedPart(source)
        stored = self._late.pop(LOADER, None)
        if stored is not None:
            put_back(LOADER, part, stored)
        self._parts[LOADER] = part
        return part.feed

    def before_step(self, wait: Callable[[], None]) -> None:
        """Have `wait` called ahead of every step of every torch optimizer in the state."""
        for optimizer in self._optimizers().values():
            optimizer.register_step_pre_hook(lambda *_: wait())

    @property
    def steps(self) -> int | None:
        """Steps that the torch optimizers in the state have taken since this was made; None if there are none."""
        return self._steps if self._optimizers() else None

    def has_gradients(self) -> bool:
        """Tell whether any parameter has a gradient."""
        return any(self._gradients().values())

    def _count_step(self) -> None:
        self._steps += 1

    def capture(self, *, overlap: bool = False) -> "Captured":
        """Take hold of everything at a step boundary.

        With `overlap`, what changes in the step of a torch optimizer and nowhere else may be copied later: the
        parameters it steps, and its own state. Buffers, averaged models, frozen parameters and scalars are not.

        Raises: UnknownState.
        """
        collected: dict[str, Collector] = {}
        documents: dict[str, Any] = {}
        trees = {name: (part.kind, part.tree()) for name, part in self._parts.items()}
        trees |= {name: (late.kind, late.tree()) for name, late in self._late.items()}  # whose loader nobody gave yet
        if self.with_gradients:
            trees[GRADIENTS] = (GRADIENTS, self._gradients())
        for name, (kind, tree) in trees.items():
            collected[name] = collector = Collector(allow_pickle=self._allow_pickle)
            documents[name] = {"kind": kind, "tree": _pack(name, tree, collector)}
        later = self._stepped(collected) if overlap else {}
        return Captured(collected, documents, encoding.pack(rng.capture()), later)

    def plan(self, documents: Mapping[str, Any], leaves: Mapping[str, Sequence[Leaf]]) -> RestorePlan:
        """Compare a checkpoint with this state, before a byte of it is touched. Raises: StateMismatch."""
        stored = {
            name: Stored(name, document, leaves.get(name, ()), allow_pickle=self._allow_pickle)
            for name, document in documents["parts"].items()
        }
        late = {name: stored.pop(name) for name in (LOADER,) if name in stored and name not in self._parts}
        gradients = stored.pop(GRADIENTS, None)
        gone, new = sorted({*stored} - {*self._parts}), sorted({*self._parts} - {*stored})
        problems = [f"part {name!r} is in the checkpoint, not in the run" for name in gone]
        problems += [f"part {name!r} is in the run, not in the checkpoint" for name in new]
        for name in stored.keys() & self._parts.keys():
            own = Collector(allow_pickle=self._allow_pickle)
            tree = _pack(name, self._parts[name].tree(), own)
            problems += stored[name].compare(self._parts[name], tree, own.leaves)
        if problems:
            raise StateMismatch("", problems)
        everything = {**stored, **late, **({GRADIENTS: gradients} if gradients else {})}
        return Plan(everything, self._parts, lambda: self._after_load(late, gradients, documents["rng"]))

    def _after_load(self, late: dict[str, Stored], gradients: Stored | None, states: Any) -> None:
        self._late = late
        if gradients is not None:
            for name, tree in gradients.tree().items():
                part = self._parts.get(name)
                if isinstance(part, ModulePart):
                    part.put_back_gradients(tree)
        rng.restore(encoding.unpack(states))

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        owners = ((name, part.owner) for name, part in self._parts.items() if isinstance(part, StatefulPart))
        return {name: owner for name, owner in owners if isinstance(owner, torch.optim.Optimizer)}

    def _stepped(self, collected: Mapping[str, Collector]) -> dict[str, set[int]]:
        """Numbers of the leaves of each part that change only in the step of a torch optimizer."""
        optimizers = self._optimizers()
        stepped = {
            parameter.data_ptr()
            for optimizer in optimizers.values()
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        later: dict[str, set[int]] = {}
        for name, part in self._parts.items():
            entries = list(enumerate(zip(collected[name].leaves, collected[name].sources, strict=True)))
            if isinstance(part, ModulePart):
                own = stepped & {parameter.data_ptr() for parameter in part.module.parameters()}
                later[name] = {i for i, (_, t) in entries if isinstance(t, torch.Tensor) and t.data_ptr() in own}
            elif name in optimizers:
                later[name] = {i for i, (leaf, _) in entries if leaf.name.startswith("state.") and leaf.shape}
        return later

    def _gradients(self) -> dict[str, dict[str, torch.Tensor]]:
        return {name: part.gradients() for name, part in self._parts.items() if isinstance(part, ModulePart)}


class Captured:
    """The `Capture` port: everything but the tensors is held by value already."""

    def __init__(
        self,
        collected: Mapping[str, Collector],
        parts: Mapping[str, Any],
        states: Any,
        later: Mapping[str, set[int]],
    ) -> None:
        self._sources: dict[str, list[Array]] = {name: c.sources for name, c in collected.items()}
        self._later = later
        self._rest: list[tuple[str, memoryview, torch.Tensor, int]] = []
        self._documents = {"parts": parts, "rng": states}
        self.parts: dict[str, Sequence[Leaf]] = {name: c.leaves for name, c in collected.items() if c.leaves}

    def documents(self, progress: Mapping[str, Any]) -> bytes:
        """Write the documents, with `progress` along."""
        return encoding.dumps({"format": 1, **self._documents, "progress": encoding.pack(dict(progress))})

    def copy_into(self, targets: Mapping[str, Sequence[memoryview]]) -> bool:
        """Copy every tensor, but for those that may be copied later; tell whether that was all."""
        for part, memories in targets.items():
            later = self._later.get(part, ())
            for i, (memory, source) in enumerate(zip(memories, self._sources[part], strict=True)):
                if i in later and isinstance(source, torch.Tensor):
                    name = f"{part}/{self.parts[part][i].name}"
                    self._rest.append((name, memory, source, source._version))
                else:
                    copy_to(memory, source)
        return not self._rest

    def copy_rest(self) -> None:
        """Copy the others."""
        for _, memory, source, _ in self._rest:
            copy_to(memory, source)

    def spoiled(self) -> str:
        """Name a tensor that was written to since the boundary: torch counts the writes, each one at its end."""
        changed = (name for name, _, source, version in self._rest if source._version != version)
        name = next(changed, None)
        return "" if name is None else f"{name} was changed outside of an optimizer's step while it was copied"


def _pack(name: str, tree: Any, collector: Collector) -> Any:
    try:
        return encoding.pack(tree, "", collector)
    except Unstorable as error:
        path = f"{name}.{error.path}" if error.path else name
        value = error.value
        kind = f"{value.layout} {value.dtype} tensor" if isinstance(value, torch.Tensor) else type(value).__name__
        raise UnknownState(
            f"state[{path}]",
            kind,
            "keep it out of the state, store it as plain data, or set Settings(allow_pickle=True)",
        ) from error
