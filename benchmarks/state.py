"""The state that everybody saves: a GPT's parameters and its AdamW moments, of a given size, random throughout."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash

from holdfast.cli.demo.gpt import GPT, VOCABULARY

CONTEXT = 64
_FLOAT_BYTES = 4
_COPIES = 3
"""Parameters and two moments."""
_FROZEN = 0.95


@dataclass(slots=True)
class Trained:
    """A model and its optimizer, as if they had trained for a while."""

    model: torch.nn.Module
    optimizer: torch.optim.AdamW

    @property
    def parts(self) -> dict[str, Any]:
        """What a script would put into `state`."""
        return {"model": self.model, "optimizer": self.optimizer}

    def state_dicts(self) -> dict[str, Any]:
        """What a script would hand to a function that saves."""
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load(self, state_dicts: dict[str, Any]) -> None:
        """What a script does with what such a function gave back."""
        self.model.load_state_dict(state_dicts["model"])
        self.optimizer.load_state_dict(state_dicts["optimizer"])

    @property
    def trained(self) -> list[torch.nn.Parameter]:
        """The parameters that training changes."""
        return [p for p in self.model.parameters() if p.requires_grad]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Every tensor, always in the same order."""
        moments = [self.optimizer.state[p][key] for p in self.trained for key in sorted(self.optimizer.state[p])]
        return [*(p.data for p in self.model.parameters()), *moments]

    @property
    def changing(self) -> list[torch.Tensor]:
        """The tensors that training changes."""
        frozen = {p.data_ptr() for p in self.model.parameters() if not p.requires_grad}
        return [tensor for tensor in self.tensors if tensor.data_ptr() not in frozen]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return bytes_of(self.tensors)

    def advance(self) -> None:
        """Change every tensor that a training step would change."""
        for tensor in self.changing:
            tensor.add_(1.0 / 64)

    def forget(self) -> None:
        """Overwrite everything, so that only a load that works brings it back."""
        for tensor in self.tensors:
            tensor.zero_()

    def digest(self) -> str:
        """Tell whether two states are the same, bit for bit."""
        hasher = xxhash.xxh3_128()
        for tensor in self.tensors:
            hasher.update(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))
        return str(hasher.hexdigest())


def gpt(mib: int, seed: int = 0) -> Trained:
    """Make a GPT of which parameters and moments take at most `mib` MiB, and nearly that."""
    layers = 3 if mib < 256 else 6 if mib < 1024 else 8
    width = _width(layers, mib << 20)
    with torch.device("meta"):
        model = GPT(layers=layers, width=width, heads=4, context=CONTEXT, dropout=0.0)
    model.to_empty(device="cpu")
    return _trained(model, seed)


def adapted(mib: int, seed: int = 0) -> Trained:
    """Make a frozen base with small adapters beside it: 95 % of the bytes do not change."""
    total = (mib << 20) // _FLOAT_BYTES
    side = math.isqrt(int(total * _FROZEN) // 64)
    wide = int(total * (1 - _FROZEN)) // (_COPIES * 64)
    model = torch.nn.ModuleDict(
        {
            "base": torch.nn.ParameterList(torch.empty(side, side) for _ in range(64)),
            "adapters": torch.nn.ParameterList(torch.empty(wide) for _ in range(64)),
        }
    )
    model["base"].requires_grad_(False)
    return _trained(model, seed)


def bytes_of(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of some tensors."""
    return sum(tensor.nbytes for tensor in tensors)


def _trained(model: torch.nn.Module, seed: int) -> Trained:
    generator = np.random.Generator(np.random.SFC64(seed))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for parameter in model.parameters():
        _randomize(parameter.data, generator)
        if parameter.requires_grad:
            moments = {name: torch.empty_like(parameter.data) for name in ("exp_avg", "exp_avg_sq")}
            for moment in moments.values():
                _randomize(moment, generator)
            optimizer.state[parameter] = {"step": torch.tensor(1000.0), **moments}
    return Trained(model, optimizer)


def _randomize(tensor: torch.Tensor, generator: np.random.Generator) -> None:
    generator.random(dtype=np.float32, out=tensor.reshape(-1).numpy())


def _width(layers: int, nbytes: int) -> int:
    def needed(width: int) -> int:
        block = 12 * width * width + 13 * width
        return _COPIES * _FLOAT_BYTES * (layers * block + (2 * VOCABULARY + CONTEXT + 2) * width)

    width = 32
    while needed(width + 16) <= nbytes:
        width += 16
    return width
