"""`show`, `verify`, `diff`: what is in a checkpoint, is it sound, what changed."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from holdfast import wiring
from holdfast.engine import commit, write
from holdfast.engine.checkpoint import open_checkpoint
from holdfast.engine.difference import differences
from holdfast.errors import CheckpointError
from holdfast.spec.leaves import CHUNK_BYTES, Leaf
from holdfast.spec.names import CheckpointId
from holdfast.storage.digest import xxh3
from holdfast.storage.local import LocalStore
from holdfast.storage.memory import MemoryStore
from holdfast.testing.clock import ToldClock
from tests.made import Tensor, damage, floats, make_checkpoint, make_newer, make_run, shorten
from tests.stand_ins import Hindered, Operation
from tests.terminal import Terminal, holdfast


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A run's store without checkpoints."""
    return make_run(tmp_path / "run")


def test_show_tells_everything_about_one_checkpoint(store: LocalStore) -> None:
    """Step, versions, flags, parts, files and config come out as they were saved."""
    matrix = Tensor("float64", (2, 3), bytes(48))
    checkpoint = make_checkpoint(
        store,
        10,
        leaves={"model": {"weight": matrix, "bias": floats(1, 2)}},
        plain={"scheduler": {"last_epoch": 10}},
        config={"lr": 0.1, "betas": (0.9, 0.99), "width": {"hidden": 4}},
        metrics={"loss": 0.5},
    )
    facts = holdfast("show", store.url, "--json").facts
    assert {"step": 10, "samples": 40, "world_size": 1, "pinned": False, "run_id": "made"}.items() <= facts.items()
    assert facts["versions"]["torch"] == "2.6.0"
    assert facts["flags"] == {"threads": 2}
    assert facts["data"] == {"level": "bit-exact", "why": ""}
    assert facts["config"] == {"lr": 0.1, "betas": {"$tuple": [0.9, 0.99]}, "width": {"hidden": 4}}
    assert [(p["part"], p["tensors"], p["elements"], p["tensor_bytes"]) for p in facts["parts"]] == [
        ("model", 2, 8, 56),
        ("scheduler", 0, 0, 0),
    ]
    on_disk = {name.removeprefix(checkpoint.folder): store.size(name) for name in store.list(checkpoint.folder)}
    assert {entry["file"]: entry["file_bytes"] for entry in facts["files"]} == on_disk
    assert "tensors" not in facts
    page = holdfast("show", store.url).out
    for word in ("step 10", "(0.9, 0.99)", "width.hidden", "made.Plain", "2.6.0", "loss 0.5"):
        assert word in page


def test_show_lists_tensors_when_asked(store: LocalStore) -> None:
    """Name, dtype, shape, bytes and file; brackets are not taken for markup."""
    make_checkpoint(store, 10, leaves={"model": {"[red]weight": Tensor("float64", (2, 3), bytes(48))}})
    (tensor,) = holdfast("show", store.url, "--tensors", "--json").facts["tensors"]
    assert tensor == {
        "tensor": "model/[red]weight",
        "dtype": "float64",
        "shape": [2, 3],
        "tensor_bytes": 48,
        "file": "model.r00000.safetensors",
    }
    page = holdfast("show", store.url, "--tensors").out
    assert "model/[red]weight" in page
    assert "[2, 3]" in page


def test_show_tells_own_bytes_from_referenced_ones(store: LocalStore) -> None:
    """Tensors that lie in an older checkpoint's file count as referenced, with that file's full name."""
    old = make_checkpoint(store, 10, leaves={"model": {"weight": floats(1, 2, 3)}})
    new = CheckpointId(attempt=1, step=20)
    rank = dataclasses.replace(open_checkpoint(store, xxh3, old).ranks[0], checkpoint=new, parts={})
    for blob in rank.blobs:
        store.create(new.folder + blob, [store.read(old.folder + blob)])
    write.write_rank_manifest(store, xxh3, rank)
    commit.commit(store, xxh3, ToldClock(), new, 1)
    facts = holdfast("show", store.url, "20", "--tensors", "--json").facts
    assert facts["referenced_bytes"] == 12
    assert facts["added_bytes"] == sum(blob.nbytes for blob in rank.blobs.values())
    assert facts["tensors"][0]["file"] == f"{old.folder}model.r00000.safetensors"


def test_show_of_a_damaged_checkpoint_is_an_error(store: LocalStore) -> None:
    """Code 11 and one line that names the file."""
    damage(store, make_checkpoint(store, 10).folder + "documents.r00000.json")
    said = holdfast("show", store.url)
    assert (said.code, said.out, said.err.count("\n")) == (CheckpointError.exit_code, "", 1)
    assert "documents.r00000.json" in said.err


def test_verify_finds_a_flipped_byte_of_any_file(store: LocalStore) -> None:
    """Deep is the default: every byte of every file is covered, and the reason names the file."""
    checkpoint = make_checkpoint(store, 10, config={"lr": 0.1}, metrics={"loss": 0.5})
    assert holdfast("verify", store.url).code == 0
    for name in store.list(checkpoint.folder):
        damage(store, name)
        said = holdfast("verify", store.url, "--json")
        assert (said.code, said.facts["sound"]) == (11, False)
        assert name.rpartition("/")[2] in said.facts["checkpoints"][0]["problem"]
        damage(store, name)
    assert holdfast("verify", store.url).code == 0


def test_verify_quick_looks_at_names_lengths_and_headers(store: LocalStore) -> None:
    """Quick does not see a flipped byte of a tensor; it does see a file that is too short, or gone."""
    checkpoint = make_checkpoint(store, 10, leaves={"model": {"weight": Tensor("uint8", (9000,), bytes(9000))}})
    file = checkpoint.folder + "model.r00000.safetensors"
    damage(store, file)
    assert [holdfast("verify", store.url, how).code for how in ("--quick", "--deep")] == [0, 11]
    shorten(store, file)
    assert holdfast("verify", store.url, "--quick").code == 11
    store.delete(file)
    said = holdfast("verify", store.url, "--quick")
    assert said.code == 11
    assert "is missing" in said.out


def test_verify_all_judges_each_checkpoint(store: LocalStore) -> None:
    """One damaged, one of a newer format, one sound: each has its verdict, and the whole is not sound."""
    broken, newer, _ = (make_checkpoint(store, step) for step in (10, 20, 30))
    damage(store, broken.folder + "model.r00000.safetensors")
    make_newer(store, newer)
    said = holdfast("verify", store.url, "--all", "--json")
    assert said.code == 11
    assert [one["verdict"] for one in said.facts["checkpoints"]] == ["damaged", "unreadable", "sound"]
    assert said.facts["checkpoints"][2]["checked_bytes"] > 0
    page = holdfast("verify", store.url, "--all").out
    assert [page.count(word) for word in ("DAMAGED", "UNREADABLE", "sound")] == [1, 1, 1]


def test_verify_leaves_out_what_is_pruned_meanwhile(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that a running attempt removes is not reported as damaged; if it was the only one, that is said."""
    first, _ = make_checkpoint(store, 10), make_checkpoint(store, 20)

    def remove(operation: Operation, name: str) -> None:
        if operation == "read" and name == first.manifest:
            store.delete(name)

    monkeypatch.setattr(wiring, "open_store", lambda url: Hindered(store, remove))
    said = holdfast("verify", store.url, "--all", "--json")
    assert (said.code, [v["checkpoint"] for v in said.facts["checkpoints"]]) == (0, ["0000000020-a000001"])
    make_checkpoint(store, 10, again=1)
    first = CheckpointId(attempt=1, step=10, again=1)
    assert holdfast("verify", store.url, "10").code == 11


def test_verify_shows_progress_on_a_terminal_only(store: LocalStore) -> None:
    """The bar goes to standard error, so that standard output stays one JSON document."""
    make_checkpoint(store, 10)
    assert holdfast("verify", store.url).err == ""
    said = holdfast("verify", store.url, "--json", stderr=Terminal())
    assert "0000000010-a000001" in said.err
    assert said.facts["sound"] is True


def test_diff_tells_what_changed_and_what_did_not(store: LocalStore) -> None:
    """Every kind of change appears once, under its kind."""
    make_checkpoint(
        store,
        10,
        leaves={
            "model": {"same": floats(1), "other": floats(1), "wide": floats(1), "gone": floats(1)},
            "ema": {"same": floats(1)},
        },
        plain={"scheduler": {"last_epoch": 1, "groups": [{"lr": 0.1, "params": [0]}]}},
        config={"lr": 0.1, "deep": {"width": 4}},
        metrics={"loss": 0.5},
    )
    make_checkpoint(
        store,
        20,
        leaves={"model": {"same": floats(1), "other": floats(2), "wide": floats(1, 2), "new": floats(1)}},
        plain={"scheduler": {"last_epoch": 2, "groups": [{"lr": 0.2, "params": [0]}]}, "extra": {"on": True}},
        config={"lr": 0.1, "deep": {"width": 8}},
        metrics={"loss": 0.25},
        about={"versions": {"holdfast": "0.1.0", "torch": "2.7.0"}, "flags": {"threads": 4}},
    )
    facts = holdfast("diff", store.url, "10", "20", "--json").facts
    assert (facts["a"], facts["b"]) == ("0000000010-a000001", "0000000020-a000001")
    assert facts["config"] == [{"key": "deep.width", "a": "4", "b": "8"}]
    assert facts["versions"] == [{"key": "torch", "a": "'2.6.0'", "b": "'2.7.0'"}]
    assert facts["flags"] == [{"key": "threads", "a": "2", "b": "4"}]
    assert facts["metrics"] == [{"key": "loss", "a": "0.5", "b": "0.25"}]
    values = [entry["key"] for entry in facts["values"]]
    assert {"scheduler.last_epoch", "scheduler.groups.0.lr", "extra.on"} <= set(values)
    assert "scheduler.groups.0.params" not in values
    assert facts["parts"] == {"added": ["extra"], "removed": ["ema"], "other_kind": []}
    tensors = facts["tensors"]
    assert [entry["tensor"] for entry in tensors["added"]] == ["model/new"]
    assert [entry["tensor"] for entry in tensors["removed"]] == ["model/gone", "ema/same"]
    assert tensors["reshaped"] == [
        {"tensor": "model/wide", "a": {"dtype": "float32", "shape": [1]}, "b": {"dtype": "float32", "shape": [2]}}
    ]
    assert tensors["changed"] == [{"tensor": "model/other", "changed_bytes": 4}]
    assert (tensors["equal"], tensors["equal_bytes"], tensors["changed_bytes"]) == (1, 4, 4)
    page = holdfast("diff", store.url, "10", "20").out
    for word in ("deep.width: 4 -> 8", "model/new", "ema/same", "float32[1] -> float32[2]", "1 tensor equal"):
        assert word in page


def test_diff_of_a_checkpoint_with_itself_is_empty(store: LocalStore) -> None:
    """Nothing differs, and every byte is equal."""
    make_checkpoint(store, 10)
    facts = holdfast("diff", store.url, "10", "latest", "--json").facts
    groups = ("config", "versions", "flags", "metrics", "step_info", "values", "rng")
    assert all(facts[group] == [] for group in groups)
    assert (facts["tensors"]["equal_bytes"], facts["tensors"]["changed"]) == (8, [])


def test_diff_lists_twenty_unless_asked_for_all(store: LocalStore) -> None:
    """The page stays short; --all and --json have everything."""
    for step in (10, 20):
        leaves = {"model": {f"w{i:02d}": floats(step + i) for i in range(25)}}
        make_checkpoint(store, step, leaves=leaves)
    page = holdfast("diff", store.url, "10", "20").out
    assert (page.count("model/w"), "5 more" in page, "(25)" in page) == (20, True, True)
    assert holdfast("diff", store.url, "10", "20", "--all").out.count("model/w") == 25
    assert len(holdfast("diff", store.url, "10", "20", "--json").facts["tensors"]["changed"]) == 25


def test_changed_bytes_are_counted_by_chunk() -> None:
    """Of a tensor of two chunks with one other byte, the chunk without it counts as equal."""
    store = MemoryStore()
    found = [
        open_checkpoint(store, xxh3, make_checkpoint(store, step, leaves={"m": {"w": floats(1)}})) for step in (1, 2)
    ]

    def stretched(opened: Any, digests: tuple[str, str]) -> Any:
        (stored,) = opened.ranks[0].leaves
        large = dataclasses.replace(stored, leaf=Leaf("w", "uint8", (CHUNK_BYTES + 5,)), digests=digests)
        large = dataclasses.replace(large, offset=(0,), lengths=large.leaf.shape)
        return dataclasses.replace(opened, ranks=(dataclasses.replace(opened.ranks[0], leaves=(large,)),))

    found_differences = differences(stretched(found[0], ("a", "b")), stretched(found[1], ("a", "c")))
    assert found_differences.changed == (("m/w", 5),)
    assert (found_differences.equal_bytes, found_differences.changed_bytes) == (CHUNK_BYTES, 5)
