"""Write a part of a checkpoint with torch, so that `torch.load(weights_only=True)` reads it."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import Unavailable
from ..spec import encoding
from ..spec.leaves import Leaf
from .tensors import empty, memory_of, unpacker


def write_torch_file(path: Path, packed: Any, leaves: Sequence[Leaf], read: Callable[[Leaf, memoryview], None]) -> None:
    """Fill the part's tensors through `read` and save the whole tree as one new file, durably.

    Raises: Unavailable when the file cannot be written; whatever `read` raises.
    """
    tensors = {}
    for leaf in leaves:
        tensors[leaf.name] = empty(leaf)
        read(leaf, memory_of(tensors[leaf.name]))
    tree = encoding.unpack(packed, unpacker(tensors.__getitem__, allow_pickle=False))
    try:
        with path.open("xb") as file:
            torch.save(tree, file)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise Unavailable(str(path), f"could not be written: {error.strerror or error}; free space there") from error
