"""Runs made for tests: committed checkpoints, unfinished saves, attempts, without torch and without training.

::

    store = make_run(tmp_path / "run")
    make_attempt(store, 1, ending="killed")
    make_checkpoint(store, 10, metrics={"loss": 0.5})
    make_checkpoint(store, 20, leaves={"model": {"weight": floats(1, 2, 3)}}, plain={"scheduler": {"last_epoch": 20}})

All of it goes through the engine's own code, and the documents are shaped like those of a real training.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.engine import attempts
from holdfast.spec import encoding, names
from holdfast.spec.attempts import Claim, Ending, Verdict
from holdfast.spec.leaves import Leaf
from holdfast.spec.manifest import FORMAT, seal
from holdfast.spec.names import CheckpointId
from holdfast.spec.ports import Store
from holdfast.storage.digest import xxh3
from holdfast.storage.disk import PosixDisk
from holdfast.storage.local import LocalStore
from tests.stand_ins import Written, save, write_only

TAKEN_AT = 1_700_000_000.0
NOBODY = {"host": "elsewhere", "boot": "none", "pid_namespace": "none", "pid": 1, "started": 1, "command": "train.py"}
"""A holder on a machine that nobody here can look at."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a leaf holds."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def floats(*values: float) -> Tensor:
    """Make a vector of float32."""
    return Tensor("float32", (len(values),), struct.pack(f"<{len(values)}f", *values))


class Hasty:
    """The `Disk` port over this machine's files, without a single sync: no test outlives a power failure."""

    def __init__(self) -> None:
        self._disk = PosixDisk()

    def sync(self, handle: int) -> None:
        """Leave it to the kernel."""

    def sync_directory(self, path: Path) -> None:
        """Leave it to the kernel."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


def make_run(folder: Path) -> LocalStore:
    """Make a run without checkpoints."""
    store = LocalStore(folder, Hasty())  # type: ignore[arg-type]
    store.create(names.RUN, [json.dumps({"format": 1, "run": "made", "created_at": TAKEN_AT}).encode()])
    return store


def make_attempt(
    store: Store, attempt: int, *, ending: Ending | None = None, holder: Mapping[str, Any] = NOBODY, detail: str = ""
) -> None:
    """Claim an attempt, and say how it ended if it did."""
    claim = Claim(attempt=attempt, holder=holder, claimed_at=TAKEN_AT)
    store.create(names.claim(attempt), [json.dumps(claim.to_json()).encode()])
    if ending is not None:
        verdict = Verdict(
            attempt=attempt, ending=ending, step=10 * attempt, checkpoint=None, detail=detail, ended_at=TAKEN_AT + 60
        )
        attempts.record_verdict(store, verdict)


def make_checkpoint(
    store: Store,
    step: int,
    attempt: int = 1,
    *,
    again: int = 0,
    metrics: Mapping[str, float] | None = None,
    leaves: Mapping[str, Mapping[str, Tensor]] | None = None,
    plain: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    history: bytes | None = None,
    commit: bool = True,
) -> CheckpointId:
    """Write one checkpoint and commit it, unless `commit` is false; make them in the order of their attempts.

    Args:
        leaves: the tensors of each part; by default one module whose bytes depend on the step.
        plain: parts without tensors.
        about: what shall differ from the usual description of the step.
        history: `metrics.csv`; by default one row with `metrics`.
    """
    metrics = metrics or {}
    checkpoint = CheckpointId(attempt=attempt, step=step, again=again)
    state = _State(leaves if leaves is not None else {"model": {"weight": floats(step, 1)}}, plain or {})
    if history is None:
        header, row = ",".join(["step", *metrics]), ",".join(map(repr, [step, *metrics.values()]))
        history = f"{header}\n{row}\n".encode() if metrics else b""
    position = {"step": step, "micro": 0, "epoch": 0, "samples": 4 * step}
    written = Written(
        metrics=history,
        config=b"".join(f"{key}: {value}\n".encode() for key, value in (config or {}).items()),
        progress={"position": position, "config": dict(config or {})},
        about={**_usual(step), "metrics": dict(metrics), **(about or {})},
    )
    (save if commit else write_only)(store, checkpoint, state, written)  # type: ignore[arg-type]
    return checkpoint


def damage(store: Store, name: str) -> None:
    """Flip one byte in the middle of an object."""
    raw = bytearray(store.read(name))
    raw[len(raw) // 2] ^= 1
    store.delete(name)
    store.create(name, [bytes(raw)])


def shorten(store: Store, name: str) -> None:
    """Cut the last byte off an object."""
    raw = store.read(name)
    store.delete(name)
    store.create(name, [raw[:-1]])


def make_newer(store: Store, checkpoint: CheckpointId) -> None:
    """Let a checkpoint say that a newer Holdfast wrote it."""
    body = json.loads(store.read(checkpoint.manifest))
    del body["digest"]
    store.delete(checkpoint.manifest)
    store.create(checkpoint.manifest, [seal({**body, "format": FORMAT + 1}, xxh3)])


def _usual(step: int) -> dict[str, Any]:
    return {
        "run": "made",
        "code": None,
        "versions": {"holdfast": "0.1.0", "torch": "2.6.0"},
        "flags": {"threads": 2},
        "step": step,
        "micro": 0,
        "epoch": 0,
        "samples": 4 * step,
        "reason": "every 10 steps",
        "data": {"level": "bit-exact", "why": ""},
        "taken_at": TAKEN_AT + step,
        "parent": None,
    }


class _State:
    """As much of a state as a save needs; it is its own capture."""

    def __init__(self, leaves: Mapping[str, Mapping[str, Tensor]], plain: Mapping[str, Any]) -> None:
        self._tensors = leaves
        self._plain = plain
        self.parts: dict[str, Sequence[Leaf]] = {
            part: [Leaf(name, tensor.dtype, tensor.shape) for name, tensor in of_part.items()]
            for part, of_part in leaves.items()
        }

    def capture(self) -> "_State":
        return self

    def documents(self, progress: Mapping[str, Any]) -> bytes:
        parts: dict[str, Any] = {
            part: {"kind": "module", "tree": {name: {"$tensor": name} for name in of_part}}
            for part, of_part in self._tensors.items()
        }
        parts |= {part: {"kind": "made.Plain", "tree": encoding.pack(value)} for part, value in self._plain.items()}
        rng = {"python": encoding.pack([3, b"words", None]), "torch": encoding.pack(b"words")}
        packed = {"format": 1, "parts": parts, "rng": rng, "progress": encoding.pack(dict(progress))}
        return encoding.dumps(packed)

    def copy_into(self, targets: Mapping[str, Sequence[memoryview]]) -> bool:
        for part, memories in targets.items():
            for memory, tensor in zip(memories, self._tensors[part].values(), strict=True):
                memory[:] = tensor.data
        return True
