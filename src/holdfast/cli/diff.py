"""`holdfast diff`: what changed between two checkpoints of a run."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import wiring
from ..decide import config
from ..engine.checkpoint import Checkpoint, open_checkpoint, read_documents
from ..engine.difference import Difference, differences
from ..errors import UsageError
from ..spec import encoding
from ..spec.leaves import Leaf
from ..spec.ports import Store
from . import output
from .address import RunArgument, find_checkpoint, find_run
from .output import Facts, JsonOption

if TYPE_CHECKING:
    from rich.console import Console

FirstArgument = Annotated[str, typer.Argument(metavar="A", help="A name, a step, or latest.")]
SecondArgument = Annotated[str, typer.Argument(metavar="B", help="A name, a step, or latest.")]
AllOption = Annotated[
    bool, typer.Option("--all", help="List everything that differs, not only the first 20 of a kind.")
]

_SHOWN = 20
_KEYED = ("config", "versions", "flags", "metrics", "step_info", "values")


def diff(
    run: RunArgument,
    first: FirstArgument,
    second: SecondArgument,
    every: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Tell what changed between two checkpoints: config, versions, metrics, tensors.

    Tensors are compared by the digests in the manifests, so this is fast at any size; it does not read them. --json
    lists everything.

    Example: `holdfast diff runs/digits 60 latest`
    """
    address = find_run(run)
    if address.named is not None:
        raise UsageError(f"{run} is one checkpoint; give the run's folder, then two checkpoints of it")
    old, new = (
        open_checkpoint(address.store, wiring.xxh3, find_checkpoint(address, wanted)) for wanted in (first, second)
    )
    facts = _facts(address.store, old, new)
    output.tell(facts, as_json, lambda told, console: _page(told, console, every))


def _facts(store: Store, first: Checkpoint, second: Checkpoint) -> Facts:
    old, new = (read_documents(store, wiring.xxh3, one.ranks[0]) for one in (first, second))
    about = [dict(one.manifest.step) for one in (first, second)]
    grouped = {key: [step.pop(key, {}) for step in about] for key in ("versions", "flags", "metrics")}
    grouped["config"] = [encoding.unpack(one["progress"]["config"]) for one in (old, new)]
    grouped["step_info"] = about
    grouped["values"] = [_values(one["parts"]) for one in (old, new)]
    return {
        "run": store.url,
        "a": str(first.id),
        "b": str(second.id),
        **{group: _keyed(*grouped[group]) for group in _KEYED},
        "parts": _parts(old["parts"], new["parts"]),
        "rng": sorted(name for name in {*old["rng"], *new["rng"]} if old["rng"].get(name) != new["rng"].get(name)),
        "tensors": _tensors(differences(first, second)),
    }


def _keyed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Facts]:
    return [{"key": key, "a": before, "b": after} for key, before, after in config.differences(old, new)]


def _values(parts: Mapping[str, Any]) -> dict[str, Any]:
    """All that is no tensor, part by part; tensors stand in it by name."""
    return {
        part: _indexed(encoding.unpack(document["tree"], lambda tag, body: f"<{tag.lstrip('$')} {body}>"))
        for part, document in parts.items()
    }


def _indexed(value: Any) -> Any:
    """Turn lists of groups into dicts by index, so that one changed number shows alone."""
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return {str(index): _indexed(item) for index, item in enumerate(value)}
    if isinstance(value, Mapping):
        return {str(key): _indexed(item) for key, item in value.items()}
    return value


def _parts(old: Mapping[str, Any], new: Mapping[str, Any]) -> Facts:
    return {
        "added": [part for part in new if part not in old],
        "removed": [part for part in old if part not in new],
        "other_kind": [
            {"part": part, "a": old[part]["kind"], "b": new[part]["kind"]}
            for part in old
            if part in new and old[part]["kind"] != new[part]["kind"]
        ],
    }


def _tensors(difference: Difference) -> Facts:
    return {
        "added": [{"tensor": name, **_leaf(leaf)} for name, leaf in difference.added],
        "removed": [{"tensor": name, **_leaf(leaf)} for name, leaf in difference.removed],
        "reshaped": [{"tensor": name, "a": _leaf(old), "b": _leaf(new)} for name, old, new in difference.reshaped],
        "changed": [{"tensor": name, "changed_bytes": nbytes} for name, nbytes in difference.changed],
        "equal": len(difference.equal),
        "equal_bytes": difference.equal_bytes,
        "changed_bytes": difference.changed_bytes,
    }


def _leaf(leaf: Leaf) -> Facts:
    return {"dtype": leaf.dtype, "shape": list(leaf.shape)}


def _page(facts: Facts, console: "Console", every: bool) -> None:
    console.print(f"a  {facts['a']}")
    console.print(f"b  {facts['b']}")
    titles = {"step_info": "about the step", "values": "values that are no tensors"}
    for group in _KEYED:
        _section(
            titles.get(group, group),
            [f"{entry['key']}: {_short(entry['a'])} -> {_short(entry['b'])}" for entry in facts[group]],
            console,
            every,
        )
    if facts["rng"]:
        console.print(f"\nrandom number generators that stand elsewhere: {', '.join(facts['rng'])}")
    parts, tensors = facts["parts"], facts["tensors"]
    _section("parts only in a", parts["removed"], console, every)
    _section("parts only in b", parts["added"], console, every)
    _section(
        "parts of another kind", [f"{p['part']}: {p['a']} -> {p['b']}" for p in parts["other_kind"]], console, every
    )
    _section("tensors only in a", [_named(entry) for entry in tensors["removed"]], console, every)
    _section("tensors only in b", [_named(entry) for entry in tensors["added"]], console, every)
    _section(
        "tensors of another shape or dtype",
        [f"{entry['tensor']}: {_shape(entry['a'])} -> {_shape(entry['b'])}" for entry in tensors["reshaped"]],
        console,
        every,
    )
    _section(
        f"tensors with other bytes ({len(tensors['changed'])})",
        [f"{entry['tensor']}  {output.size(entry['changed_bytes'])}" for entry in tensors["changed"]],
        console,
        every,
    )
    console.print(
        f"\n{output.counted(tensors['equal'], 'tensor')} equal; of the tensors in both, "
        f"{output.size(tensors['equal_bytes'])} are equal and {output.size(tensors['changed_bytes'])} differ"
    )


def _section(title: str, lines: list[str], console: "Console", every: bool) -> None:
    if not lines:
        return
    console.print(f"\n{title}")
    for line in lines if every else lines[:_SHOWN]:
        console.print(f"  {line}")
    if not every and len(lines) > _SHOWN:
        console.print(f"  … and {len(lines) - _SHOWN} more; --all lists them")


def _short(value: str) -> str:
    return output.shortened(value, 60)


def _named(entry: Facts) -> str:
    return f"{entry['tensor']}  {_shape(entry)}"


def _shape(leaf: Facts) -> str:
    return f"{leaf['dtype']}{leaf['shape']}"
