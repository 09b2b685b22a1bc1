"""A snapshot survives the trip to the keeper."""

import json

from holdfast.spec.leaves import Leaf
from holdfast.spec.names import CheckpointId
from holdfast.spec.snapshot import Snapshot, Span

SNAPSHOT = Snapshot(
    checkpoint=CheckpointId(attempt=3, step=120, again=2),
    slot=1,
    taken_at=1_700_000_000.123456,
    parts={"model": Span("model.r00000.safetensors", 0, 4120), "opt": Span("opt.r00000.safetensors", 8192, 4104)},
    blobs=(Span("documents.r00000.json", 16384, 77), Span("metrics.csv", 16461, 0)),
    leaves={
        "model": ((Leaf("w", "float32", (2, 3)), 4096),),
        "opt": ((Leaf("s", "float64", ()), 4096), (Leaf("e", "int8", (0, 4)), 4104)),
    },
    step={"step": 120, "reason": "every 20 steps", "parent": None, "metrics": {"loss": 0.1}},
)


def test_it_round_trips_through_json() -> None:
    """What the keeper reads is what the trainer took, shapes as tuples and instants to the last bit."""
    assert Snapshot.from_json(json.loads(json.dumps(SNAPSHOT.to_json()))) == SNAPSHOT


def test_its_bytes_are_those_of_all_files() -> None:
    """Parts and blobs count, the gaps between them do not."""
    assert SNAPSHOT.nbytes == 4120 + 4104 + 77
