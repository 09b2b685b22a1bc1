"""`ls`: which checkpoints there are, what is wrong with them, and how attempts ended."""

import os
from dataclasses import asdict
from pathlib import Path

import pytest

from holdfast.cli.inventory import take_inventory
from holdfast.decide.retention import Keep
from holdfast.launchers.local import LocalProcesses
from holdfast.spec import names
from holdfast.storage.local import LocalStore
from tests.made import damage, make_attempt, make_checkpoint, make_newer, make_run, shorten
from tests.stand_ins import Hindered, Operation
from tests.terminal import holdfast


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A run's store without checkpoints."""
    return make_run(tmp_path / "run")


def test_ls_tells_every_checkpoint_oldest_to_newest(store: LocalStore) -> None:
    """Age is attempt, then step; each row has what the manifest says of the step."""
    make_checkpoint(store, 10, metrics={"loss": 0.5})
    make_checkpoint(store, 30)
    make_checkpoint(store, 20, 2, about={"parent": "0000000010-a000001", "epoch": 1, "reason": "may lose 60 s"})
    facts = holdfast("ls", store.url, "--json").facts
    assert [c["checkpoint"] for c in facts["checkpoints"]] == [
        "0000000010-a000001",
        "0000000030-a000001",
        "0000000020-a000002",
    ]
    last = facts["checkpoints"][-1]
    expected = {"step": 20, "attempt": 2, "epoch": 1, "reason": "may lose 60 s", "parent": "0000000010-a000001"}
    assert expected.items() <= last.items()
    assert facts["checkpoints"][0]["metrics"] == {"loss": 0.5}
    folder = "checkpoints/0000000020-a000002/"
    manifests = (folder + "manifest.json", folder + "rank.r00000.json")
    assert last["written_bytes"] == sum(store.size(name) for name in store.list(folder) if name not in manifests)


def test_the_page_of_ls_shows_each_checkpoint_and_where_a_resume_went_on(store: LocalStore) -> None:
    """One row per checkpoint, with its metrics; an attempt's row says at which step it took up the work."""
    make_attempt(store, 1, ending="killed")
    make_checkpoint(store, 10, metrics={"loss": 0.5})
    make_attempt(store, 2, ending="finished")
    make_checkpoint(store, 20, 2, about={"parent": "0000000010-a000001"})
    rows = [line.split() for line in holdfast("ls", store.url).out.splitlines()]
    (first,) = (row for row in rows if row[:1] == ["0000000010-a000001"])
    assert first[-7:] == ["loss", "0.5", "every", "10", "steps", "last", "3"]
    (second,) = (row for row in rows if row[:1] == ["2"])
    assert second[-3:] == ["finished", "10", "20"]


@pytest.mark.parametrize("name", ["manifest.json", "rank.r00000.json", "model.r00000.safetensors"])
def test_ls_shows_what_is_damaged_and_goes_on(store: LocalStore, name: str) -> None:
    """A manifest with a flipped byte, or a file that is too short, is a row with the reason, not an error."""
    broken = make_checkpoint(store, 10)
    make_checkpoint(store, 20)
    if name.endswith(".json"):
        damage(store, broken.folder + name)
    else:
        shorten(store, broken.folder + name)
    said = holdfast("ls", store.url)
    assert said.code == 0
    row = next(line for line in said.out.splitlines() if line.startswith(str(broken)))
    assert row.split()[-1] == "DAMAGED"
    assert f"{broken} is damaged: " in said.out
    facts = holdfast("ls", store.url, "--json").facts["checkpoints"]
    assert [entry["problem"] is None for entry in facts] == [False, True]
    assert name in facts[0]["problem"]


def test_a_checkpoint_of_a_newer_format_is_told_but_not_counted_as_damaged(store: LocalStore) -> None:
    """It is whole, only unreadable here: retention treats it like any other."""
    newer = make_checkpoint(store, 10)
    make_checkpoint(store, 20)
    make_newer(store, newer)
    assert take_inventory(store).damaged == frozenset()
    entry = holdfast("ls", store.url, "--json").facts["checkpoints"][0]
    assert "format 2" in entry["problem"]
    assert (entry["kept_because"], entry["damaged"]) == ("last 3", False)
    assert f"{newer} is unreadable: " in holdfast("ls", store.url).out


def test_a_checkpoint_pruned_while_it_is_looked_at_is_gone_and_not_damaged(store: LocalStore) -> None:
    """A running attempt may prune at any moment; what it removes does not appear as damaged."""
    going = make_checkpoint(store, 10)
    make_checkpoint(store, 20)

    def remove(operation: Operation, name: str) -> None:
        if operation == "read" and name == going.manifest:
            store.delete(name)

    inventory = take_inventory(Hindered(store, remove))
    assert [checkpoint.step for checkpoint in inventory.existing] == [20]
    assert inventory.problems == {}


def test_ls_tells_what_is_kept_and_why(store: LocalStore) -> None:
    """Pinned ones say so; what the default rules let go has no reason."""
    for step in (10, 20, 30, 40, 50):
        make_checkpoint(store, step)
    holdfast("pin", store.url, "10")
    facts = holdfast("ls", store.url, "--json").facts["checkpoints"]
    assert [entry["kept_because"] for entry in facts] == ["pinned", None, "last 3", "last 3", "last 3"]
    assert [entry["pinned"] for entry in facts] == [True, False, False, False, False]


def test_ls_explains_by_the_runs_own_rules(store: LocalStore) -> None:
    """The newest sound checkpoint tells them; those of older ones, and of a damaged one, count for nothing."""
    own = {"keep": asdict(Keep(last=2, best=1, metric="loss", mode="max"))}
    other = {"keep": asdict(Keep(last=9))}
    for step, loss, about in ((10, 0.1, other), (20, 0.9, own), (30, 0.2, own), (40, 0.3, own), (50, 0.4, other)):
        make_checkpoint(store, step, metrics={"loss": loss}, about=about)
    shorten(store, "checkpoints/0000000050-a000001/model.r00000.safetensors")
    facts = holdfast("ls", store.url, "--json").facts
    assert facts["keep"] == own["keep"]
    reasons = [entry["kept_because"] for entry in facts["checkpoints"]]
    assert reasons[:4] == [None, "best 1 by loss (max)", "last 2", "last 2"]


def test_ls_goes_on_when_the_history_is_damaged(store: LocalStore) -> None:
    """A flipped byte in metrics.csv, which only a deep look shows, takes no checkpoint out of the list."""
    about = {"keep": asdict(Keep(last=2, best=1, metric="loss"))}
    for step in (10, 20, 30):
        newest = make_checkpoint(store, step, metrics={"loss": step / 10}, about=about)
    damage(store, newest.folder + names.METRICS)
    said = holdfast("ls", store.url, "--json")
    reasons = [entry["kept_because"] for entry in said.facts["checkpoints"]]
    assert (said.code, reasons) == (0, ["best 1 by loss (min)", "last 2", "last 2"])


def test_ls_tells_how_attempts_ended(store: LocalStore) -> None:
    """A verdict is told; without one, whether the newest attempt's process lives, or that nobody here can tell."""
    here = LocalProcesses().describe(os.getpid())
    make_attempt(store, 1, ending="crashed", detail="ValueError: [1, 2]")
    make_attempt(store, 2)
    make_attempt(store, 3, holder=here)
    facts = holdfast("ls", store.url, "--json").facts["attempts"]
    assert [(a["ending"], a["living"]) for a in facts] == [("crashed", False), (None, False), (None, True)]
    page = holdfast("ls", store.url).out
    for word in ("crashed", "ValueError: [1, 2]", "without a word", "running"):
        assert word in page


@pytest.mark.parametrize(
    ("started", "living", "word"), [(None, None, "not known"), (-1, False, "without a word")], ids=["elsewhere", "dead"]
)
def test_ls_tells_a_dead_attempt_from_one_that_nobody_can_judge(
    store: LocalStore, started: int | None, living: bool | None, word: str
) -> None:
    """A process of this machine that is gone is dead; one of another machine is not known."""
    if started is None:
        make_attempt(store, 1)
    else:
        make_attempt(store, 1, holder={**LocalProcesses().describe(os.getpid()), "started": started})
    assert holdfast("ls", store.url, "--json").facts["attempts"][0]["living"] is living
    assert word in holdfast("ls", store.url).out


def test_a_damaged_claim_still_counts_as_an_attempt(store: LocalStore) -> None:
    """Nobody is recognised by it, so nobody can tell whether it lives."""
    store.create(names.claim(1), [b"rubbish"])
    facts = holdfast("ls", store.url, "--json").facts["attempts"]
    assert [(a["attempt"], a["holder"], a["living"]) for a in facts] == [(1, None, None)]


def test_a_damaged_verdict_reads_as_none(store: LocalStore) -> None:
    """An attempt whose verdict is rubbish has ended, in a way that nobody knows."""
    make_attempt(store, 1)
    store.create(names.verdict(1), [b'{"ending": "finished"}'])
    facts = holdfast("ls", store.url, "--json").facts["attempts"]
    assert [(a["ending"], a["living"]) for a in facts] == [(None, False)]


def test_a_long_past_is_cut_on_the_page_only(store: LocalStore) -> None:
    """Ten attempts are shown, with the number of the others; JSON has all."""
    for attempt in range(1, 14):
        make_attempt(store, attempt, ending="killed")
    assert "3 earlier attempts not shown" in holdfast("ls", store.url).out
    assert len(holdfast("ls", store.url, "--json").facts["attempts"]) == 13


def test_ls_counts_unfinished_saves(store: LocalStore) -> None:
    """What interrupted saves left is told apart from what a resume may still commit."""
    make_attempt(store, 1, ending="killed")
    make_checkpoint(store, 10)
    make_checkpoint(store, 5, commit=False)
    make_attempt(store, 2, ending="killed")
    make_checkpoint(store, 20, 2, commit=False)
    facts = holdfast("ls", store.url, "--json").facts["unfinished"]
    assert [(entry["checkpoint"], entry["left_alone"]) for entry in facts] == [
        ("0000000005-a000001", False),
        ("0000000020-a000002", True),
    ]
    page = holdfast("ls", store.url).out
    assert "1 unfinished save left behind" in page
    assert "1 save being written" in page
