"""Make the frozen store of the current format: python -m tests.golden.make tests/golden/format-1

Run once per format version, before its first release; what it wrote is then never edited. The newest checkpoint is
written so that its frozen tensors lie in an older checkpoint's file.
"""

import dataclasses
import json
import shutil
import sys
import time
from pathlib import Path

import holdfast
from holdfast.engine.checkpoint import committed, open_checkpoint
from holdfast.engine.commit import commit
from holdfast.spec.leaves import lay_out
from holdfast.spec.manifest import PartFile
from holdfast.storage.digest import xxh3
from holdfast.storage.local import LocalStore

from . import training

FROZEN = ("0.weight", "0.bias")


def train(folder: Path) -> None:
    """Train to the end of the second epoch, saving every step."""
    state = training.build()
    loader = holdfast.DataLoader(training.dataset(), batch_size=4, shuffle=True, seed=0)
    settings = holdfast.Settings(every_steps=1, keep=holdfast.Keep(last=2))
    with holdfast.Run(folder, state=state, config=training.CONFIG, settings=settings) as run:
        for batch in run.batches(loader, epochs=training.EPOCHS):
            run.report(loss=training.step(state, batch))


def add_by_reference(folder: Path) -> None:
    """Commit one more checkpoint, equal to the newest, whose unchanged tensors are not written again."""
    store = LocalStore(folder)
    newest = open_checkpoint(store, xxh3, committed(store)[-1])
    old = newest.ranks[0]
    again = dataclasses.replace(old.checkpoint, again=old.checkpoint.again + 1)
    file = "model.r00000.safetensors"
    moving = [s for s in old.leaves if s.part == "model" and s.leaf.name not in FROZEN]
    image = lay_out([s.leaf for s in moving])
    data = bytearray(image.header) + bytearray(image.nbytes - len(image.header))
    moved = []
    for stored, start in zip(moving, image.starts, strict=True):
        store.read_into(stored.file, stored.start, memoryview(data)[start : start + stored.leaf.nbytes])
        moved.append(dataclasses.replace(stored, file=again.folder + file, start=start))
    store.create(again.folder + file, [data])
    for name in old.blobs:
        store.create(again.folder + name, [store.read(old.checkpoint.folder + name)])
    described = PartFile(nbytes=len(data), header_bytes=len(image.header), header_digest=xxh3(image.header))
    manifest = dataclasses.replace(
        old,
        checkpoint=again,
        parts={file: described},
        leaves=tuple(s for s in old.leaves if s not in moving) + tuple(moved),
    )
    store.create(again.folder + "rank.r00000.json", [manifest.to_bytes(xxh3)])
    commit(store, xxh3, time, again, 1)


def forget_the_machine(folder: Path) -> None:
    """Replace what claims and events say about the process that made this; neither is sealed."""
    holder = {"host": "golden", "boot": "", "pid_namespace": "", "pid": 1, "started": 0, "command": "make"}
    for path in (*folder.glob("attempts/*.json"), *folder.glob("ledger/*/*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if "holder" in line:
                line["holder"] = holder
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def expected(folder: Path) -> dict[str, object]:
    """Say what a reader must find in the newest checkpoint."""
    state = training.build()
    loader = holdfast.DataLoader(training.dataset(), batch_size=4, shuffle=True, seed=0)
    with holdfast.Run(folder, state=state, config=training.CONFIG) as run:
        values = {
            "step": run.step,
            "epoch": run.epoch,
            "weights": {name: value.tolist() for name, value in state["model"].state_dict().items()},
            "moment": state["optimizer"].state_dict()["state"][0]["exp_avg"].tolist(),
            "learning_rate": state["optimizer"].param_groups[0]["lr"],
        }
        del loader
    return values


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if target.exists():
        raise SystemExit(f"{target} exists; frozen checkpoints are never made again")
    train(target)
    add_by_reference(target)
    forget_the_machine(target)
    scratch = target.with_suffix(".scratch")
    shutil.copytree(target, scratch)
    text = json.dumps(expected(scratch), indent=1)
    shutil.rmtree(scratch)
    (target.parent / f"{target.name}.expected.json").write_text(text + "\n")
