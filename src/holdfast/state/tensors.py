"""Tensors and arrays as leaves: what can be stored, how the bytes are reached, how values travel in documents."""

import ctypes
import pickle
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch

from ..errors import UsageError
from ..spec.encoding import Unstorable
from ..spec.leaves import ITEM_BYTES, Leaf

Array: TypeAlias = "torch.Tensor | np.ndarray[Any, Any]"

_PARALLEL_FROM = 4
"""With fewer threads one alone is as fast: it saturates the memory, and does not wait for another on a busy core."""

_TORCH_DTYPE: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES if hasattr(torch, name)}
_DTYPE_NAME: dict[torch.dtype, str] = {dtype: name for name, dtype in _TORCH_DTYPE.items()}


class Collector:
    """Takes the tensors out of a part while it is packed; what stays behind is typed JSON that names them."""

    def __init__(self, *, allow_pickle: bool) -> None:
        self.leaves: list[Leaf] = []
        self.sources: list[Array] = []
        self._allow_pickle = allow_pickle
        self._names: set[str] = set()
        self._seen: dict[tuple[object, ...], str] = {}

    def __call__(self, path: str, value: object) -> Any:
        """Pack one value that is not plain data. Raises: Unstorable."""
        if isinstance(value, torch.Tensor):
            return {"$tensor": self._tensor(path, value)}
        if isinstance(value, np.ndarray):
            return {"$array": self._add(path, value, _numpy_dtype(path, value))}
        if isinstance(value, np.generic):
            return {"$scalar": self._add(path, np.asarray(value), _numpy_dtype(path, np.asarray(value)))}
        if isinstance(value, torch.Size):
            return {"$size": list(value)}
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"$device": str(value)}
        if self._allow_pickle:
            return {"$pickle": pickle.dumps(value).hex()}
        raise Unstorable(path, value)

    def _tensor(self, path: str, tensor: torch.Tensor) -> str:
        dense = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta
        if not dense or tensor.dtype not in _DTYPE_NAME:
            raise Unstorable(path, tensor)
        tensor = tensor.detach()
        key = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and key in self._seen:
            return self._seen[key]  # tied weights: one leaf, two names
        name = self._add(path, tensor, _DTYPE_NAME[tensor.dtype])
        self._seen[key] = name
        return name

    def _add(self, path: str, source: Array, dtype: str) -> str:
        name = path or "value"
        while name in self._names or name == "__metadata__":
            name += "#"
        self._names.add(name)
        self.leaves.append(Leaf(name, dtype, tuple(source.shape)))
        self.sources.append(source)
        return name


def unpacker(leaf: Callable[[str], torch.Tensor], *, allow_pickle: bool) -> Callable[[str, Any], Any]:
    """Make the handler that turns tags in documents back into tensors, arrays and torch's own values.

    Raises (when called): UsageError for an unknown tag, or a pickle that is not allowed.
    """

    def foreign(tag: str, body: Any) -> Any:
        if tag == "$tensor":
            return leaf(body)
        if tag == "$array":
            return leaf(body).numpy()
        if tag == "$scalar":
            return leaf(body).numpy()[()]
        if tag == "$size":
            return torch.Size(body)
        if tag == "$dtype":
            return getattr(torch, body)
        if tag == "$device":
            return torch.device(body)
        if tag == "$pickle" and allow_pickle:
            return pickle.loads(bytes.fromhex(body))
        if tag == "$pickle":
            raise UsageError("it holds a pickle, which can run any code; to trust it, set Settings(allow_pickle=True)")
        raise UsageError(f"it holds a {tag!r}, which this Holdfast does not know; upgrade it")

    return foreign


def empty(leaf: Leaf) -> torch.Tensor:
    """Make host memory for one leaf."""
    return torch.empty(leaf.shape, dtype=_TORCH_DTYPE[leaf.dtype])


def fits(tensor: torch.Tensor, leaf: Leaf) -> bool:
    """Tell whether a tensor has a leaf's dtype and shape."""
    return _DTYPE_NAME.get(tensor.dtype) == leaf.dtype and tuple(tensor.shape) == leaf.shape


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous host tensor, writable."""
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())


def is_plain_memory(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's bytes lie in host memory in row-major order."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def copy_to(memory: memoryview, source: Array) -> None:
    """Copy a tensor or array into memory of its length, densely; on several threads where that helps."""
    if not len(memory):
        return
    if isinstance(source, torch.Tensor) and torch.get_num_threads() < _PARALLEL_FROM and is_plain_memory(source):
        ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(memory)), source.data_ptr(), len(memory))
    elif isinstance(source, np.ndarray):
        np.frombuffer(memory, source.dtype).reshape(source.shape)[...] = source
    else:
        torch.frombuffer(memory, dtype=source.dtype).view(source.shape).copy_(source)


def _numpy_dtype(path: str, value: "np.ndarray[Any, Any]") -> str:
    name = str(value.dtype.name)
    if name not in ITEM_BYTES or not hasattr(torch, name) or not value.dtype.isnative:
        raise Unstorable(path, value)
    return name
