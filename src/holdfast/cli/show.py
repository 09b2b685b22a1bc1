"""`holdfast show`: everything about one checkpoint."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import wiring
from ..engine.checkpoint import Checkpoint, open_checkpoint, read_documents
from ..engine.prune import pinned
from ..spec import encoding, names
from ..spec.manifest import StoredLeaf
from ..spec.ports import Store
from . import output
from .address import CheckpointArgument, RunArgument, find_checkpoint, find_run
from .output import Facts, JsonOption

if TYPE_CHECKING:
    from rich.console import Console

TensorsOption = Annotated[bool, typer.Option("--tensors", help="List every tensor: dtype, shape, bytes, file.")]


def show(
    run: RunArgument, checkpoint: CheckpointArgument = None, tensors: TensorsOption = False, as_json: JsonOption = False
) -> None:
    """Show everything about one checkpoint: step, versions, parts, files, config.

    "Added" are the bytes that this checkpoint wrote itself; "referenced" are tensors that had not changed and lie in
    the files of older checkpoints.

    Example: `holdfast show runs/digits 120 --tensors`
    """
    address = find_run(run)
    found = open_checkpoint(address.store, wiring.xxh3, find_checkpoint(address, checkpoint))
    output.tell(_facts(address.store, found, tensors), as_json, _page)


def _facts(store: Store, checkpoint: Checkpoint, tensors: bool) -> Facts:
    documents = read_documents(store, wiring.xxh3, checkpoint.ranks[0])
    leaves = [stored for rank in checkpoint.ranks for stored in rank.leaves]
    own = checkpoint.id.folder
    about = dict(checkpoint.manifest.step)
    groups = {group: about.pop(group, {}) for group in ("versions", "flags", "metrics", "data")}
    run_id = about.pop("run", None)
    facts = {
        **about,
        **groups,
        "run": store.url,
        "run_id": run_id,
        "checkpoint": str(checkpoint.id),
        "attempt": checkpoint.id.attempt,
        "world_size": checkpoint.manifest.world_size,
        "pinned": checkpoint.id in pinned(store),
        "parts": [_part(part, documents["parts"].get(part, {}), leaves) for part in _parts(documents, leaves)],
        "added_bytes": checkpoint.nbytes,
        "referenced_bytes": sum(s.leaf.nbytes for s in leaves if not s.file.startswith(own)),
        "files": _files(store, checkpoint),
        "config": documents["progress"]["config"],
    }
    if tensors:
        facts["tensors"] = [_tensor(stored, own) for stored in leaves]
    return facts


def _parts(documents: Mapping[str, Any], leaves: list[StoredLeaf]) -> list[str]:
    return list(dict.fromkeys([*documents["parts"], *(stored.part for stored in leaves)]))


def _part(part: str, document: Mapping[str, Any], leaves: list[StoredLeaf]) -> Facts:
    mine = [stored.leaf for stored in leaves if stored.part == part]
    return {
        "part": part,
        "kind": document.get("kind"),
        "tensors": len(mine),
        "elements": sum(math.prod(leaf.shape) for leaf in mine),
        "tensor_bytes": sum(leaf.nbytes for leaf in mine),
    }


def _files(store: Store, checkpoint: Checkpoint) -> list[Facts]:
    """Every file that this checkpoint wrote, as its manifests tell it."""
    sizes = {names.MANIFEST: store.size(checkpoint.id.manifest)}
    for rank in checkpoint.ranks:
        manifest = names.rank_manifest_file(rank.rank)
        sizes |= {file: part.nbytes for file, part in rank.parts.items()}
        sizes |= {file: blob.nbytes for file, blob in rank.blobs.items()}
        sizes[manifest] = store.size(checkpoint.id.folder + manifest)
    return [{"file": file, "file_bytes": nbytes} for file, nbytes in sorted(sizes.items())]


def _tensor(stored: StoredLeaf, own: str) -> Facts:
    return {
        "tensor": f"{stored.part}/{stored.leaf.name}",
        "dtype": stored.leaf.dtype,
        "shape": list(stored.leaf.shape),
        "tensor_bytes": stored.leaf.nbytes,
        "file": stored.file.removeprefix(own),
    }


def _page(facts: Facts, console: "Console") -> None:
    for line in _summary(facts):
        console.print(line)
    console.print()
    parts = output.table("part", "tensors", "elements", "bytes", "kind", right=("tensors", "elements", "bytes"))
    for part in facts["parts"]:
        nbytes = output.size(part["tensor_bytes"])
        parts.add_row(part["part"], f"{part['tensors']:,}", f"{part['elements']:,}", nbytes, part["kind"] or "?")
    console.print(parts)
    console.print()
    files = output.table("file", "bytes", right=("bytes",))
    for file in facts["files"]:
        files.add_row(file["file"], f"{file['file_bytes']:,}")
    console.print(files)
    for group in ("config", "versions", "flags"):
        _group(group, facts[group], console)
    if "tensors" in facts:
        console.print()
        _tensors(facts["tensors"], console)


def _summary(facts: Facts) -> list[str]:
    data = facts["data"]
    level = data.get("level", "?") + (f", because {data['why']}" if data.get("why") else "")
    lines = [
        f"{facts['run']}  {facts['checkpoint']}" + ("  (pinned)" if facts["pinned"] else ""),
        f"step {facts.get('step', '?')}, epoch {facts.get('epoch', '?')}, {facts.get('samples', '?')} samples"
        + (f", {facts['micro']} batches into the next step" if facts.get("micro") else ""),
        f"taken {output.moment(facts.get('taken_at'))}, because: {facts.get('reason', '?')}",
        f"attempt {facts['attempt']}, {output.counted(facts['world_size'], 'rank')}, "
        f"after {facts.get('parent') or 'a fresh start'}",
        f"the data position resumes {level}",
        f"added {output.size(facts['added_bytes'])}, referenced {output.size(facts['referenced_bytes'])}",
    ]
    if facts["metrics"]:
        lines.append(f"metrics: {output.metrics(facts['metrics'])}")
    if facts.get("code"):
        lines.append(f"code: {facts['code']}")
    return lines


def _group(title: str, group: Mapping[str, Any], console: "Console") -> None:
    if not group:
        return
    rows = output.table(title, "")
    for key, value in _flat(encoding.unpack(group)).items():
        rows.add_row(f"  {key}", output.shortened(str(value)))
    console.print()
    console.print(rows)


def _flat(group: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in group.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _tensors(tensors: list[Facts], console: "Console") -> None:
    listed = output.table("tensor", "dtype", "shape", "bytes", "file", right=("bytes",))
    for tensor in tensors:
        nbytes = f"{tensor['tensor_bytes']:,}"
        listed.add_row(tensor["tensor"], tensor["dtype"], str(tensor["shape"]), nbytes, tensor["file"])
    console.print(listed)
