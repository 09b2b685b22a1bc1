"""The random number generators that every training uses without saying so: python, numpy, torch, every accelerator."""

import array
import random
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch


def capture() -> dict[str, Any]:
    """Return the state of all global generators as plain data. Nothing is drawn from any of them."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": [version, array.array("I", words).tobytes(), gauss],
        "numpy": [name, np.asarray(keys, np.uint32).tobytes(), int(position), int(has_gauss), float(cached)],
        "torch": _bytes(torch.get_rng_state()),
        "accelerator": [_bytes(state) for state in _accelerator_states()],
    }


def restore(states: Mapping[str, Any]) -> None:
    """Put all global generators back. Accelerators that this machine does not have are left out."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(array.array("I", words)), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, np.frombuffer(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_tensor(states["torch"]))
    backend = _backend()
    if backend is None:
        return
    for index, state in enumerate(states["accelerator"][: torch.accelerator.device_count()]):
        if backend is torch.mps:
            torch.mps.set_rng_state(_tensor(state))
        else:
            backend.set_rng_state(_tensor(state), index)


def accelerators() -> list[str]:
    """Name the accelerators of this machine, in order; empty on a machine without."""
    backend = _backend()
    if backend is None:
        return []
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    name = getattr(backend, "get_device_name", lambda index: f"{kind.type}:{index}")
    return [str(name(index)) for index in range(torch.accelerator.device_count())]


def _backend() -> ModuleType | None:
    if not torch.accelerator.is_available():
        return None
    kind = torch.accelerator.current_accelerator()
    return torch.get_device_module(kind) if kind is not None else None


def _accelerator_states() -> list[torch.Tensor]:
    backend = _backend()
    if backend is None:
        return []
    if backend is torch.mps:
        return [torch.mps.get_rng_state()]
    return [backend.get_rng_state(index) for index in range(torch.accelerator.device_count())]


def _bytes(state: torch.Tensor) -> bytes:
    return bytes(state.cpu().numpy())


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
