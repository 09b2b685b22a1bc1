"""A snapshot: the state of one step in a staging buffer, laid out as the files that will be written."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .leaves import Leaf
from .names import CheckpointId


@dataclass(frozen=True, slots=True)
class Span:
    """A file's place in the buffer."""

    name: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the keeper must know to turn a buffer into a checkpoint."""

    checkpoint: CheckpointId
    slot: int
    taken_at: float
    parts: Mapping[str, Span]
    """The safetensors file of each part."""
    blobs: tuple[Span, ...]
    """Documents, config, metrics."""
    leaves: Mapping[str, tuple[tuple[Leaf, int], ...]]
    """The leaves of each part, with their offsets from the start of its file."""
    step: Mapping[str, Any]
    """What describes the step in the manifest."""

    @property
    def nbytes(self) -> int:
        """Bytes of all files together."""
        return sum(span.nbytes for span in (*self.parts.values(), *self.blobs))

    def to_json(self) -> dict[str, Any]:
        """Plain data for the message to the keeper."""
        return {
            "checkpoint": str(self.checkpoint),
            "slot": self.slot,
            "taken_at": self.taken_at,
            "parts": {part: asdict(span) for part, span in self.parts.items()},
            "blobs": [asdict(span) for span in self.blobs],
            "leaves": {
                part: [[leaf.name, leaf.dtype, leaf.shape, start] for leaf, start in leaves]
                for part, leaves in self.leaves.items()
            },
            "step": dict(self.step),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Snapshot":
        """Read the message back."""
        checkpoint = CheckpointId.parse(value["checkpoint"])
        assert checkpoint is not None
        return cls(
            checkpoint=checkpoint,
            slot=value["slot"],
            taken_at=value["taken_at"],
            parts={part: Span(**span) for part, span in value["parts"].items()},
            blobs=tuple(Span(**span) for span in value["blobs"]),
            leaves={
                part: tuple((Leaf(name, dtype, tuple(shape)), start) for name, dtype, shape, start in leaves)
                for part, leaves in value["leaves"].items()
            },
            step=value["step"],
        )
