"""Are two trainings the same, bit for bit?

Compared are the final checkpoints of two stores: every number in `metrics.csv`, as text and as bits, and the bytes of
every tensor (weights and optimizer state). The bytes are read and compared themselves: equal digests would only be
Holdfast's word for it. What is stored beside the tensors must be equal too: the scheduler's and the loader's position,
and the state of torch's random number generator.
"""

import csv
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import HoldfastError
from ...spec import names
from ...spec.leaves import leaf_from_json
from ...spec.names import CheckpointId


@dataclass(frozen=True, slots=True)
class Tensor:
    """One stored tensor."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """What a training came to."""

    metrics: tuple[Mapping[str, str], ...]
    """The rows of `metrics.csv`, as text."""
    tensors: Mapping[str, Tensor]
    documents: Mapping[str, Any]
    """What is no tensor, by name, as stored."""

    @property
    def losses(self) -> list[float]:
        """The loss of every row."""
        return [float(row["loss"]) for row in self.metrics]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was compared, and every difference found."""

    losses: int
    tensors: int
    tensor_bytes: int
    differences: tuple[str, ...]

    @property
    def identical(self) -> bool:
        """True when there was something to compare and nothing differs."""
        return bool(self.losses and self.tensors and not self.differences)

    @property
    def verdict(self) -> str:
        """Say it in one sentence."""
        if self.identical:
            return f"{self.losses} losses and {self.tensors} final tensors are bit-identical"
        more = len(self.differences) - 3
        listed = "; ".join(self.differences[:3]) or "there was nothing to compare"
        return f"NOT identical: {listed}" + (f"; and {more} more" if more > 0 else "")


def read_final(store: Path, checkpoint: CheckpointId) -> Final:
    """Read a checkpoint of one rank. Raises: HoldfastError when a file of it is missing or is not what it should be."""
    folder = store / checkpoint.folder
    try:
        manifest = json.loads((folder / names.rank_manifest_file(0)).read_bytes())
        with (folder / names.METRICS).open(newline="") as text:
            metrics = tuple(csv.DictReader(text))
        documents = _documents(json.loads((folder / names.documents_file(0)).read_bytes()))
        tensors = {f"{entry['part']}/{entry['name']}": _read(store, manifest, entry) for entry in manifest["leaves"]}
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise HoldfastError(f"cannot read checkpoint {checkpoint} in {store}: {error!r}") from error
    return Final(metrics=metrics, tensors=tensors, documents=documents)


def compare(one: Final, other: Final, steps: int) -> Comparison:
    """Compare two trainings that should both have made `steps` steps, each of them once."""
    differences = [
        *_miscounted("undisturbed", one, steps),
        *_miscounted("interrupted", other, steps),
        *_metric_differences(one.metrics, other.metrics),
        *_tensor_differences(one.tensors, other.tensors),
        *_document_differences(one.documents, other.documents),
    ]
    return Comparison(
        losses=min(len(one.metrics), len(other.metrics)),
        tensors=len(one.tensors.keys() & other.tensors.keys()),
        tensor_bytes=sum(len(tensor.data) for tensor in one.tensors.values()),
        differences=tuple(differences),
    )


def _miscounted(name: str, final: Final, steps: int) -> Iterator[str]:
    found = [row["step"] for row in final.metrics]
    expected = [str(step) for step in range(1, steps + 1)]
    if found == expected:
        return
    missing = sorted(set(expected) - set(found), key=int)
    twice = sorted({step for step in found if found.count(step) > 1})
    yield (
        f"the {name} run has {len(found)} rows for {steps} steps"
        + (f", without step {', '.join(missing[:5])}" if missing else "")
        + (f", step {', '.join(twice[:5])} more than once" if twice else "")
    )


def _metric_differences(one: Sequence[Mapping[str, str]], other: Sequence[Mapping[str, str]]) -> Iterator[str]:
    for row, again in zip(one, other, strict=False):
        for name in sorted(row.keys() | again.keys()):
            text, text_again = row.get(name), again.get(name)
            if text != text_again or _bits(text) != _bits(text_again):
                yield f"{name} of step {row['step']} is {text} undisturbed and {text_again} interrupted"


def _tensor_differences(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Iterator[str]:
    for name in sorted(one.keys() ^ other.keys()):
        yield f"{name} is in only one of the final checkpoints"
    for name in sorted(one.keys() & other.keys()):
        a, b = one[name], other[name]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            yield f"{name} is {a.dtype}{list(a.shape)} undisturbed and {b.dtype}{list(b.shape)} interrupted"
        elif a.data != b.data:
            count = sum(x != y for x, y in zip(a.data, b.data, strict=True))
            yield f"{name} differs in {count} of {len(a.data)} bytes"


def _document_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other or one[name] != other[name]:
            yield f"what is stored beside the tensors differs in {name}"


def _bits(text: str | None) -> bytes:
    return struct.pack("<d", float(text)) if text else b""


def _documents(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what must be equal; a script that never seeds python's and numpy's generators gets others in every run."""
    return {**stored["parts"], "torch's random number generator": stored["rng"]["torch"]}


def _read(store: Path, manifest: Mapping[str, Any], entry: Mapping[str, Any]) -> Tensor:
    leaf = leaf_from_json(entry)
    with (store / manifest["files"][entry["file"]]).open("rb") as file:
        file.seek(entry["start"])
        data = file.read(leaf.nbytes)
    if len(data) != leaf.nbytes:
        raise EOFError(f"{leaf.name} has {len(data)} of {leaf.nbytes} bytes")
    return Tensor(leaf.dtype, leaf.shape, data)
