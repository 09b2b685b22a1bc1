"""`pin`, `unpin`, `prune`: retention by hand, and what must never be touched."""

import os
from dataclasses import asdict
from pathlib import Path

import pytest

from holdfast.decide.retention import Keep
from holdfast.engine.attempts import announce_keeper
from holdfast.engine.checkpoint import committed
from holdfast.launchers.local import LocalProcesses
from holdfast.spec import names
from holdfast.spec.names import CheckpointId
from holdfast.storage.local import LocalStore
from tests.made import NOBODY, damage, make_attempt, make_checkpoint, make_run, shorten
from tests.terminal import holdfast

DEAD = {**LocalProcesses().describe(os.getpid()), "started": -1}


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A run with five checkpoints of a finished attempt; their loss falls and rises again."""
    store = make_run(tmp_path / "run")
    make_attempt(store, 1, ending="finished")
    rows = ["step,loss"]
    for step, loss in ((10, 0.5), (20, 0.1), (30, 0.2), (40, 0.3), (50, 0.4)):
        rows.append(f"{step},{loss}")
        make_checkpoint(store, step, metrics={"loss": loss}, history="\n".join([*rows, ""]).encode())
    return store


def _flip_last_byte(store: LocalStore, name: str) -> None:
    """Change a byte of a tensor: nothing but its digest tells."""
    raw = store.read(name)
    store.delete(name)
    store.create(name, [raw[:-1], bytes([raw[-1] ^ 1])])


def _steps(store: LocalStore) -> list[int]:
    return [checkpoint.step for checkpoint in committed(store)]


def test_prune_keeps_what_any_rule_wants(store: LocalStore) -> None:
    """The newest, the best by a metric out of the history, the spaced ones, the pinned: each with its reason."""
    holdfast("pin", store.url, "10")
    said = holdfast("prune", store.url, "--last", "2", "--best", "1", "--metric", "loss", "--json")
    assert said.code == 0
    assert {int(kept["checkpoint"][:10]): kept["because"] for kept in said.facts["kept"]} == {
        10: "pinned",
        20: "best 1 by loss (min)",
        40: "last 2",
        50: "last 2",
    }
    assert said.facts["let_go"] == ["0000000030-a000001"]
    assert said.facts["deleted_objects"] == len(["manifest", "rank", "documents", "model", "metrics", "config"])
    assert _steps(store) == [10, 20, 40, 50]


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["--last", "1"], [40, 50]),
        (["--last", "4"], [20, 30, 40, 50]),
        (["--last", "2", "--best", "1", "--metric", "loss", "--mode", "max"], [10, 40, 50]),
        (["--last", "2", "--every-steps", "20"], [20, 40, 50]),
        ([], [30, 40, 50]),
    ],
)
def test_prune_follows_its_options(store: LocalStore, words: list[str], steps: list[int]) -> None:
    """Every option means what its help says; two are kept whatever was asked."""
    assert holdfast("prune", store.url, *words).code == 0
    assert _steps(store) == steps


def _save_under(store: LocalStore, keep: Keep) -> None:
    """Add a checkpoint of step 60 that tells the rules of its run; its history is that of the others."""
    history = store.read(CheckpointId(attempt=1, step=50).folder + names.METRICS)
    make_checkpoint(store, 60, metrics={"loss": 0.6}, history=history + b"60,0.6\n", about={"keep": asdict(keep)})


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ([], [20, 50, 60]),
        (["--last", "3"], [20, 40, 50, 60]),
        (["--best", "2"], [20, 30, 50, 60]),
        (["--best", "0"], [50, 60]),
        (["--mode", "max"], [50, 60]),
        (["--last", "2", "--mode", "max", "--best", "4"], [10, 40, 50, 60]),
        (["--every-steps", "40"], [20, 40, 50, 60]),
    ],
)
def test_prune_goes_by_the_runs_own_rules(store: LocalStore, words: list[str], steps: list[int]) -> None:
    """What the newest checkpoint was saved under holds; an option replaces one rule and leaves the others."""
    _save_under(store, Keep(last=2, best=1, metric="loss"))
    assert holdfast("prune", store.url, *words).code == 0
    assert _steps(store) == steps


def test_the_runs_own_spacing_can_be_switched_off(store: LocalStore) -> None:
    """Zero takes a rule away; the facts tell by which rules was judged."""
    _save_under(store, Keep(last=2, every_steps=20))
    words = ("prune", store.url, "--dry-run", "--json")
    own = holdfast(*words).facts
    assert [int(kept["checkpoint"][:10]) for kept in own["kept"]] == [20, 40, 50, 60]
    facts = holdfast(*words, "--every-steps", "0").facts
    assert [int(kept["checkpoint"][:10]) for kept in facts["kept"]] == [50, 60]
    assert (own["keep"]["every_steps"], facts["keep"]["every_steps"]) == (20, None)


def test_a_metric_of_the_runs_own_that_was_never_reported_is_no_error(store: LocalStore) -> None:
    """A run may plan to report it later; typed by hand, the same name is taken for a slip."""
    _save_under(store, Keep(last=2, best=1, metric="val_loss"))
    assert holdfast("prune", store.url, "--metric", "val_loss").code == 2
    assert len(_steps(store)) == 6
    assert holdfast("prune", store.url).code == 0
    assert _steps(store) == [50, 60]


@pytest.mark.parametrize("words", [["--best", "1"], ["--metric", "loss"], ["--best", "0", "--metric", "loss"]])
def test_best_and_metric_belong_together(store: LocalStore, words: list[str]) -> None:
    """Half a rule, with nothing of the run's own to complete it, is refused."""
    said = holdfast("prune", store.url, *words)
    assert (said.code, "belong together" in said.err, len(_steps(store))) == (2, True, 5)


def test_prune_by_hand_reads_every_byte_of_what_stays(store: LocalStore) -> None:
    """A flipped byte that lengths and headers do not show holds everything back."""
    _flip_last_byte(store, CheckpointId(attempt=1, step=50).folder + "model.r00000.safetensors")
    said = holdfast("prune", store.url, "--json")
    assert (said.code, "0000000050-a000001" in said.facts["held_back"]) == (11, True)
    assert len(_steps(store)) == 5


def test_a_dry_run_tells_and_deletes_nothing(store: LocalStore) -> None:
    """What would go is told in the same words."""
    make_checkpoint(store, 5, commit=False)
    everything = store.list("")
    facts = holdfast("prune", store.url, "--last", "2", "--dry-run", "--json").facts
    assert (len(facts["let_go"]), facts["deleted_objects"], facts["dry_run"]) == (3, 0, True)
    assert all(name.startswith("checkpoints/0000000005-a000001/") for name in facts["leftovers"])
    page = holdfast("prune", store.url, "--last", "2", "--dry-run").out
    assert page.count("would go") == 4
    assert store.list("") == everything
    assert holdfast("prune", store.url, "--last", "2").out.count(" went") == 4
    assert "nothing has to go" in holdfast("prune", store.url, "--last", "2").out


def test_a_metric_that_nobody_reported_is_an_error(store: LocalStore) -> None:
    """A misspelled metric would keep nothing: it is refused, with the names there are."""
    said = holdfast("prune", store.url, "--best", "1", "--metric", "los")
    assert (said.code, said.out) == (2, "")
    assert "there are: loss" in said.err
    assert len(_steps(store)) == 5


def test_damaged_checkpoints_count_for_nothing(store: LocalStore) -> None:
    """An old damaged one goes, and does not take the place of a sound one; the metrics come from a sound one too."""
    for step in (40, 50):
        shorten(store, CheckpointId(attempt=1, step=step).folder + "model.r00000.safetensors")
    said = holdfast("prune", store.url, "--last", "2", "--best", "1", "--metric", "loss", "--json")
    assert {int(kept["checkpoint"][:10]): kept["because"] for kept in said.facts["kept"]} == {
        20: "last 2",
        30: "last 2",
        40: "damaged, but not older than what is kept",
        50: "damaged, but not older than what is kept",
    }
    assert _steps(store) == [20, 30, 40, 50]


def test_nothing_is_deleted_while_a_kept_manifest_is_damaged(store: LocalStore) -> None:
    """What it refers to is unknown, so prune holds back, says why, and ends with code 11."""
    damage(store, CheckpointId(attempt=1, step=50).manifest)
    everything = store.list("")
    said = holdfast("prune", store.url, "--last", "2", "--json")
    assert said.code == 11
    assert "0000000050-a000001" in said.facts["held_back"]
    assert "NOTHING WAS DELETED" in holdfast("prune", store.url, "--last", "2").out
    assert store.list("") == everything


@pytest.mark.parametrize(
    ("holder", "ending", "goes"),
    [
        (LocalProcesses().describe(os.getpid()), None, False),
        (NOBODY, None, False),
        (DEAD, None, True),
        (DEAD, "killed", True),
        (LocalProcesses().describe(os.getpid()), "finished", True),
    ],
    ids=["living", "elsewhere", "dead", "killed", "finished"],
)
def test_what_a_living_attempt_writes_is_left_alone(
    store: LocalStore, holder: dict[str, object], ending: str | None, goes: bool
) -> None:
    """Half a save of an attempt that lives, or that nobody can judge, stays; that of a dead one goes."""
    make_attempt(store, 2, holder=holder, ending=ending)  # type: ignore[arg-type]
    half = CheckpointId(attempt=2, step=60).folder + "model.r00000.safetensors"
    store.create(half, [b"half"])
    litter = CheckpointId(attempt=1, step=55).folder + "model.r00000.safetensors"
    store.create(litter, [b"half"])
    facts = holdfast("prune", store.url, "--json").facts
    assert (half in facts["leftovers"], litter in facts["leftovers"]) == (goes, True)
    assert (half in store.list(""), litter in store.list("")) == (not goes, False)
    assert facts["left_alone"] == ([] if goes else ["0000000060-a000002"])


def test_a_living_keeper_alone_protects_its_last_save(store: LocalStore) -> None:
    """The trainer is dead, its keeper still writes."""
    make_attempt(store, 2, holder=DEAD)
    here = LocalProcesses().describe(os.getpid())
    announce_keeper(store, 2, 1, here)
    half = CheckpointId(attempt=2, step=60).folder + "model.r00000.safetensors"
    store.create(half, [b"half"])
    assert holdfast("prune", store.url, "--json").facts["leftovers"] == []
    assert half in store.list("")


def test_a_save_that_only_lacks_its_commit_is_left_for_the_next_resume(store: LocalStore) -> None:
    """Written completely by an attempt that died: the next resume commits it, so no work is lost to tidiness."""
    make_attempt(store, 2, holder=DEAD)
    complete = make_checkpoint(store, 60, 2, commit=False)
    older = make_checkpoint(store, 45, 1, commit=False)
    facts = holdfast("prune", store.url, "--json").facts
    assert facts["left_alone"] == [str(complete)]
    assert {names.checkpoint_of(name) for name in facts["leftovers"]} == {older}
    assert "left alone" in holdfast("prune", store.url).out
    assert len(store.list(complete.folder)) == 5


def test_pin_and_unpin_say_what_they_did(store: LocalStore) -> None:
    """Both can be repeated; the second time nothing changes, and that is said."""
    words = [holdfast(*line, store.url, "10", "--json").facts for line in (["pin"], ["pin"], ["unpin"], ["unpin"])]
    assert [(f["checkpoint"], f["pinned"], f["changed"]) for f in words] == [
        ("0000000010-a000001", True, True),
        ("0000000010-a000001", True, False),
        ("0000000010-a000001", False, True),
        ("0000000010-a000001", False, False),
    ]
    assert "as it was before" in holdfast("unpin", store.url, "10").out
    assert store.list(names.PINS) == []


def test_a_checkpoints_folder_can_be_pinned(store: LocalStore) -> None:
    """The folder names run and checkpoint at once."""
    folder = Path(store.url) / "checkpoints" / "0000000010-a000001"
    assert holdfast("pin", folder).out == "0000000010-a000001 is pinned\n"


def test_a_pin_whose_checkpoint_is_gone_can_be_removed(store: LocalStore) -> None:
    """Somebody deleted the folder by hand; its pin is named in full."""
    gone = CheckpointId(attempt=1, step=10)
    holdfast("pin", store.url, "10")
    for name in store.list(gone.folder):
        store.delete(name)
    assert holdfast("unpin", store.url, gone).code == 0
    assert store.list(names.PINS) == []
    assert holdfast("unpin", store.url, gone).code == 11
