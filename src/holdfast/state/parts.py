"""One adapter per kind of thing that can stand in `state`: how it is taken apart, and put back."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
import torch.utils.data
from torch.nn.parallel import DistributedDataParallel

from ..errors import UnknownState, UsageError
from ..spec import encoding
from .feed import Feed, feed_for

_COMPILED = "_orig_mod."


class Part(Protocol):
    """Something that can be captured and restored."""

    @property
    def kind(self) -> str:
        """What it is, for messages and for comparing."""
        ...

    def tree(self) -> Any:
        """Its state as nested data with tensors in it, not copied yet."""
        ...

    def places(self) -> Mapping[str, torch.Tensor]:
        """Tensors that stored ones must be written into, by path; for all others `put_back` takes any tensor."""
        ...

    def put_back(self, tree: Any) -> None:
        """Take over a restored tree. Tensors with a `place` hold the restored values already."""
        ...


class ModulePart:
    """A torch module, under its plain names: without the marks of torch.compile and DistributedDataParallel."""

    kind = "module"

    def __init__(self, module: torch.nn.Module) -> None:
        self.compiled = any(hasattr(m, "_orig_mod") for m in module.modules())
        self.module = unwrap(module)

    def tree(self) -> dict[str, Any]:
        """Parameters, buffers and extra state by plain name."""
        return {name.replace(_COMPILED, ""): value for name, value in self.module.state_dict().items()}

    def places(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers; nothing where the module shows tensors that are not its own."""
        if not self._owns_what_it_shows():
            return {}
        return {name: value.detach() for name, value in self.tree().items() if isinstance(value, torch.Tensor)}

    def put_back(self, tree: Any) -> None:
        """Let the module load what could not be written in place: extra state, and whatever its hooks make of it."""
        if self._loads_by_itself():
            actual = {name.replace(_COMPILED, ""): name for name in self.module.state_dict()}
            self.module.load_state_dict({actual[name]: value for name, value in tree.items()})

    def gradients(self) -> dict[str, torch.Tensor]:
        """The gradients accumulated so far, by plain parameter name."""
        named = self.module.named_parameters()
        return {name.replace(_COMPILED, ""): p.grad for name, p in named if p.grad is not None}

    def put_back_gradients(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Set every parameter's gradient; parameters that had none get none."""
        for name, parameter in self.module.named_parameters():
            gradient = gradients.get(name.replace(_COMPILED, ""))
            parameter.grad = None if gradient is None else gradient.to(parameter.device)

    def _owns_what_it_shows(self) -> bool:
        own = {t.data_ptr() for t in (*self.module.parameters(), *self.module.buffers())}
        shown = (v for v in self.module.state_dict().values() if isinstance(v, torch.Tensor))
        return all(value.data_ptr() in own for value in shown)

    def _loads_by_itself(self) -> bool:
        shown = self.module.state_dict().values()
        if not all(isinstance(value, torch.Tensor) for value in shown) or not self._owns_what_it_shows():
            return True
        return any(_has_own_loading(module) for module in self.module.modules())


class StatefulPart:
    """Anything with state_dict and load_state_dict: schedulers, scalers, the user's own."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.kind = f"{type(owner).__module__}.{type(owner).__qualname__}"

    def tree(self) -> Any:
        """What the object says of itself."""
        return self.owner.state_dict()

    def places(self) -> dict[str, torch.Tensor]:
        """None: the object takes any tensor."""
        return {}

    def put_back(self, tree: Any) -> None:
        """Have the object load it."""
        self.owner.load_state_dict(tree)


class OptimizerPart(StatefulPart):
    """A torch optimizer, whose state comes back in the dtypes it had."""

    def places(self) -> dict[str, torch.Tensor]:
        """The moments that it has already, so that no memory is needed twice."""
        state: dict[int, dict[str, Any]] = self.owner.state_dict()["state"]
        return {
            f"state.{number}.{name}": value
            for number, moments in state.items()
            for name, value in moments.items()
            if isinstance(value, torch.Tensor)
        }

    def put_back(self, tree: Any) -> None:
        """Have it load its state, then put back what torch rounded to a parameter's dtype on the way."""
        self.owner.load_state_dict(tree)
        live = self.owner.state_dict()["state"]
        for key, entries in tree["state"].items():
            held = live.get(key)
            if not isinstance(entries, dict) or not isinstance(held, dict):
                continue
            for name, value in entries.items():
                now = held.get(name)
                if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor) and now.dtype != value.dtype:
                    held[name] = value.to(now.device)


class FeedPart:
    """A loader: its position in the data."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.feed: Feed = feed_for(source)
        self.kind = f"{type(source).__module__}.{type(source).__qualname__}"

    def tree(self) -> Any:
        """The position after the batch that the loop consumed last."""
        return self.feed.state_dict()

    def places(self) -> dict[str, torch.Tensor]:
        """None: the loader takes any tensor."""
        return {}

    def put_back(self, tree: Any) -> None:
        """Move to the saved position. Raises: UsageError when the data or the loader changed."""
        self.feed.load_state_dict(tree)


class GeneratorPart:
    """A torch.Generator of the user's."""

    kind = "generator"

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def tree(self) -> torch.Tensor:
        """Its state, a byte tensor on the host."""
        return self._generator.get_state()

    def places(self) -> dict[str, torch.Tensor]:
        """None: the generator takes any tensor."""
        return {}

    def put_back(self, tree: Any) -> None:
        """Set its state."""
        self._generator.set_state(tree)


class TensorPart:
    """A tensor or array on its own: restored in place."""

    def __init__(self, value: Any) -> None:
        self.kind = "tensor" if isinstance(value, torch.Tensor) else "array"
        self._value = value

    def tree(self) -> Any:
        """The tensor or array itself."""
        return self._value

    def places(self) -> dict[str, torch.Tensor]:
        """The tensor itself, or one that shares the array's memory."""
        own = self._value.detach() if isinstance(self._value, torch.Tensor) else torch.from_numpy(self._value)
        return {"value": own}

    def put_back(self, tree: Any) -> None:
        """Nothing is left to do: it was restored in place."""


class PlainPart:
    """A dict, list, set, deque or bytearray of plain data, tensors and arrays.

    Its contents are replaced; a tensor or parameter that stands at the same place with the same shape is filled, so
    that an optimizer that holds it goes on holding the right one.
    """

    def __init__(self, value: Any) -> None:
        self.kind = type(value).__name__
        self._value = value

    def tree(self) -> Any:
        """The container itself."""
        return self._value

    def places(self) -> dict[str, torch.Tensor]:
        """The tensors that stand in it now."""
        found: dict[str, torch.Tensor] = {}

        def remember(path: str, value: object) -> None:
            if isinstance(value, torch.Tensor):
                found[path] = value

        encoding.pack(self._value, "", remember)
        return found

    def put_back(self, tree: Any) -> None:
        """Replace the contents, keeping the container that the user's code holds."""
        self._value.clear()
        if isinstance(self._value, dict | set):
            self._value.update(tree)
        else:
            self._value.extend(tree)


def parts_of(path: str, value: Any) -> dict[str, Part]:
    """Take something the user put into `state` apart into adapters, by dotted path.

    Dicts and lists that hold modules, optimizers and the like are taken apart; those of plain data are one part.

    Raises: UnknownState for what could not be put back.
    """
    if isinstance(value, torch.nn.Module):
        return {path: ModulePart(value)}
    stateful = callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
    if isinstance(value, torch.utils.data.DataLoader) or (stateful and hasattr(value, "__iter__")):
        return {path: FeedPart(value)}
    if isinstance(value, torch.optim.Optimizer):
        return {path: OptimizerPart(value)}
    if stateful:
        return {path: StatefulPart(value)}
    if isinstance(value, torch.Generator):
        return {path: GeneratorPart(value)}
    if isinstance(value, torch.Tensor | np.ndarray):
        return {path: TensorPart(value)}
    if isinstance(value, dict | list | tuple) and _holds_stateful(value):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return join(parts_of(f"{path}.{key}", item) for key, item in items)
    if isinstance(value, dict | set | list | deque | bytearray):
        return {path: PlainPart(value)}
    raise UnknownState(
        f"state[{path}]",
        type(value).__name__,
        "give it state_dict() and load_state_dict(), or put plain values into a dict, where they can be put back",
    )


def join(several: Iterable[Mapping[str, Part]]) -> dict[str, Part]:
    """Put parts together. Raises: UsageError when two would have the same name."""
    joined: dict[str, Part] = {}
    for parts in several:
        for name, part in parts.items():
            if name in joined:
                raise UsageError(f"two parts of the state would both be called {name!r}; rename one of them")
            joined[name] = part
    return joined


def unwrap(module: torch.nn.Module) -> torch.nn.Module:
    """Reach the user's module behind torch.compile and DistributedDataParallel."""
    while True:
        if isinstance(module, DistributedDataParallel):
            module = module.module
        elif hasattr(module, "_orig_mod"):
            module = module._orig_mod
        else:
            return module


def _holds_stateful(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value
    return any(
        isinstance(item, torch.Generator | torch.utils.data.DataLoader)
        or callable(getattr(item, "load_state_dict", None))
        or (isinstance(item, dict | list | tuple) and _holds_stateful(item))
        for item in items
    )


def _has_own_loading(module: torch.nn.Module) -> bool:
    kind = type(module)
    overrides = kind._load_from_state_dict is not torch.nn.Module._load_from_state_dict
    own = overrides and not kind.__module__.startswith("torch.nn.modules.")
    return own or bool(module._load_state_dict_pre_hooks) or bool(module._load_state_dict_post_hooks)
