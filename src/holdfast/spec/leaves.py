"""Leaves, and the safetensors image that holds them.

A part of the state becomes one ordinary safetensors file (https://github.com/huggingface/safetensors#format):
8 bytes little-endian header length, the header as JSON padded with spaces, then the tensors without holes.
The header is padded so that the data starts on a page, and a write is one straight pass over memory.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PAGE_BYTES = 4096
CHUNK_BYTES = 16 << 20
"""A leaf is digested in chunks of so many bytes, counted from its first, so that a range can be verified alone."""

ITEM_BYTES: dict[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
"""Element sizes of every dtype that can be stored, by torch's name."""

SAFETENSORS_DTYPE: dict[str, str] = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""Names in the file's header. A dtype that is not here is stored as U8 with a last axis of its item size."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor or array: its name within its part, torch's name of its dtype, and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Length in bytes, densely packed in row-major order."""
        total = ITEM_BYTES[self.dtype]
        for length in self.shape:
            total *= length
        return total


@dataclass(frozen=True, slots=True)
class Image:
    """The bytes of one safetensors file before its tensors are filled in."""

    header: bytes
    """Length prefix, JSON and padding: everything before the first tensor."""
    starts: tuple[int, ...]
    """Offset of each leaf from the start of the file, in the order the leaves were given."""
    nbytes: int
    """Length of the whole file."""


def lay_out(leaves: Sequence[Leaf]) -> Image:
    """Lay out leaves as a safetensors file, the widest dtypes first so that each tensor is naturally aligned."""
    order = sorted(range(len(leaves)), key=lambda i: -ITEM_BYTES[leaves[i].dtype])
    table: dict[str, Any] = {"__metadata__": {"format": "pt", "written_by": "holdfast"}}
    starts = [0] * len(leaves)
    offset = 0
    for i in order:
        leaf = leaves[i]
        shape = list(leaf.shape)
        if leaf.dtype not in SAFETENSORS_DTYPE:
            shape.append(ITEM_BYTES[leaf.dtype])
        starts[i], end = offset, offset + leaf.nbytes
        table[leaf.name] = {
            "dtype": SAFETENSORS_DTYPE.get(leaf.dtype, "U8"),
            "shape": shape,
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode()
    padding = -(8 + len(text)) % PAGE_BYTES
    header = (len(text) + padding).to_bytes(8, "little") + text + b" " * padding
    return Image(header=header, starts=tuple(len(header) + start for start in starts), nbytes=len(header) + offset)


def chunks_of(nbytes: int) -> list[tuple[int, int]]:
    """Cut `nbytes` into (start, end) chunks of `CHUNK_BYTES`; an empty leaf has one empty chunk."""
    return [(start, min(start + CHUNK_BYTES, nbytes)) for start in range(0, max(nbytes, 1), CHUNK_BYTES)]


def leaf_from_json(value: Mapping[str, Any]) -> Leaf:
    """Read a leaf from its entry in a manifest; KeyError, TypeError or ValueError when it is not one."""
    leaf = Leaf(name=str(value["name"]), dtype=str(value["dtype"]), shape=tuple(int(n) for n in value["shape"]))
    if leaf.dtype not in ITEM_BYTES:
        raise ValueError(f"unknown dtype {leaf.dtype!r}")
    return leaf
