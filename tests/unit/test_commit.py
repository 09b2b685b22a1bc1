"""Commit among ranks: the table, and the meeting in the store.

Rule 2: a checkpoint exists iff its manifest exists; the manifest is written last.
Rule 9: every wait has a deadline and says who is missing.
"""

import pytest

from holdfast.decide.commit import Action, judge
from holdfast.engine import commit
from holdfast.engine.checkpoint import committed, open_checkpoint, verify
from holdfast.engine.restore import finish_interrupted
from holdfast.errors import Corrupt, Superseded, Unavailable
from holdfast.spec import names
from holdfast.spec.manifest import FORMAT, Manifest, RankManifest, seal
from holdfast.spec.names import CheckpointId
from holdfast.storage.digest import xxh3
from holdfast.storage.memory import MemoryStore
from holdfast.testing.clock import ToldClock
from tests.stand_ins import Hindered, Operation, Rank, Written, save, some_state, write_only

ID = CheckpointId(attempt=3, step=100)
TWO = [Written(ranks=Rank(0, 2)), Written(ranks=Rank(1, 2))]


def said(rank: int, size: int = 2, checkpoint: CheckpointId = ID) -> RankManifest:
    """Make what a rank says it wrote."""
    return RankManifest(
        checkpoint=checkpoint, rank=rank, world_size=size, step={}, parts={}, blobs={}, leaves=()
    )  # fmt: skip


@pytest.mark.parametrize(
    ("present", "size", "newer", "action", "reason"),
    [
        ({}, 1, None, Action.WAIT, "rank 0 missing"),
        ({}, 3, None, Action.WAIT, "rank 0, 1, 2 missing"),
        ({0: said(0)}, 2, None, Action.WAIT, "rank 1 missing"),
        ({1: said(1)}, 2, None, Action.WAIT, "rank 0 missing"),
        ({0: said(0), 1: said(1)}, 2, None, Action.PUBLISH, "all 2 ranks are there"),
        ({0: said(0, 1)}, 1, None, Action.PUBLISH, "all 1 ranks are there"),
        ({0: said(0), 1: said(1)}, 2, 4, Action.ABANDON, "attempt 4 has taken over"),
        ({}, 2, 4, Action.ABANDON, "attempt 4 has taken over"),
        ({0: said(0), 1: said(1, 3)}, 2, None, Action.ABANDON, "rank 1 belongs to another world size"),
        ({0: said(0), 1: said(0)}, 2, None, Action.ABANDON, "rank 1 belongs to another world size"),
        ({0: said(0), 1: said(1), 2: said(2)}, 2, None, Action.ABANDON, "rank 2 belongs to another world size"),
        ({0: said(0), 1: said(1, 2, CheckpointId(attempt=3, step=99))}, 2, None, Action.ABANDON,
         "rank 1 wrote 0000000099-a000003"),
    ],
)  # fmt: skip
def test_the_table(present: dict[int, RankManifest], size: int, newer: int | None, action: Action, reason: str) -> None:
    """Wait for whoever is missing, publish when all agree, abandon for a newer attempt or a contradiction."""
    decision = judge(present, size, newer)
    assert (decision.action, decision.reason) == (action, reason)


def test_one_rank_commits_by_itself() -> None:
    """Until the manifest is there nothing is a checkpoint; then it is one, and every byte verifies."""
    store = MemoryStore()
    write_only(store, ID, some_state())
    assert committed(store) == []
    commit.commit(store, xxh3, ToldClock(), ID, 1)
    assert committed(store) == [ID]
    for _ in verify(store, xxh3, open_checkpoint(store, xxh3, ID), deep=True):
        pass


def test_a_rank_that_never_comes_is_named_at_the_deadline() -> None:
    """Rule 9: the wait ends after ten minutes, told, and the message says which rank is missing."""
    store, clock = MemoryStore(), ToldClock()
    write_only(store, ID, some_state(), TWO[0])

    def a_look_takes_long(operation: Operation, name: str) -> None:
        if operation == "read":
            clock.advance(7.0)

    with pytest.raises(Unavailable, match=r"0000000100-a000003: not committed: rank 1 missing"):
        commit.commit(Hindered(store, a_look_takes_long), xxh3, clock, ID, 2)
    assert 600 <= clock.monotonic() < 620
    assert committed(store) == []


def test_the_last_rank_to_come_is_enough() -> None:
    """Rank 0's commit waits, and publishes as soon as rank 1's manifest is there."""
    store, clock = MemoryStore(), ToldClock()
    write_only(store, ID, some_state(), TWO[0])

    def rank_1_comes_late(operation: Operation, name: str) -> None:
        if operation == "read" and name.endswith("rank.r00001.json") and 3.0 < clock.monotonic() < 3.1:
            write_only(store, ID, some_state(1), TWO[1])
            clock.advance(1.0)

    commit.commit(Hindered(store, rank_1_comes_late), xxh3, clock, ID, 2)
    assert 4.0 < clock.monotonic() < 4.2
    opened = open_checkpoint(store, xxh3, ID)
    assert [rank.rank for rank in opened.ranks] == [0, 1]
    for _ in verify(store, xxh3, opened, deep=True):
        pass


def test_committing_twice_is_no_error() -> None:
    """A keeper that took over from a dead one finds the manifest, and changes nothing."""
    store = MemoryStore()
    save(store, ID, some_state())
    raw = store.read(ID.manifest)
    again = commit.commit(store, xxh3, ToldClock(), ID, 1)
    assert store.read(ID.manifest) == raw == again.to_bytes(xxh3)


def test_two_committers_at_once_agree() -> None:
    """Whoever loses the race for the manifest returns what the winner wrote."""
    store = MemoryStore()
    write_only(store, ID, some_state())

    def another_was_faster(operation: Operation, name: str) -> None:
        if operation == "create" and name == ID.manifest:
            commit.commit(store, xxh3, ToldClock(), ID, 1)

    manifest = commit.commit(Hindered(store, another_was_faster), xxh3, ToldClock(), ID, 1)
    assert manifest == Manifest.from_bytes(store.read(ID.manifest), ID.manifest, xxh3)


@pytest.mark.parametrize("ranks_there", [0, 1, 2])
def test_a_newer_claim_stops_the_commit(ranks_there: int) -> None:
    """Fencing: once the next attempt is claimed nothing is published any more, complete or not."""
    store, clock = MemoryStore(), ToldClock()
    for written in TWO[:ranks_there]:
        write_only(store, ID, some_state(), written)
    store.create(names.claim(4), [b"{}"])
    with pytest.raises(Superseded, match=r"attempt 4 has taken over this run; attempt 3 stopped writing"):
        commit.commit(store, xxh3, clock, ID, 2)
    assert committed(store) == []
    assert clock.monotonic() == 0


def test_a_claim_that_comes_during_the_wait_ends_it() -> None:
    """A zombie that waits for its peers finds the newer claim at its next look."""
    store, clock = MemoryStore(), ToldClock()
    write_only(store, ID, some_state(), TWO[0])

    def another_attempt_begins(operation: Operation, name: str) -> None:
        if operation == "size" and clock.monotonic() > 5.0 and names.claim(4) not in store.list(""):
            store.create(names.claim(4), [b"{}"])

    with pytest.raises(Superseded):
        commit.commit(Hindered(store, another_attempt_begins), xxh3, clock, ID, 2)
    assert clock.monotonic() < 6.0


def test_ranks_that_contradict_each_other_are_not_committed() -> None:
    """A rank of another world size is an error at once, not a wait."""
    store, clock = MemoryStore(), ToldClock()
    write_only(store, ID, some_state(), TWO[0])
    write_only(store, ID, some_state(), Written(ranks=Rank(1, 3)))
    with pytest.raises(Unavailable, match="rank 1 belongs to another world size"):
        commit.commit(store, xxh3, clock, ID, 2)
    assert clock.monotonic() == 0


def test_a_damaged_rank_manifest_is_not_committed() -> None:
    """It is an error that names the file."""
    store = MemoryStore()
    store.create(ID.folder + "rank.r00000.json", [b"rubbish"])
    with pytest.raises(Corrupt, match=r"rank\.r00000\.json"):
        commit.commit(store, xxh3, ToldClock(), ID, 1)
    assert committed(store) == []


@pytest.mark.parametrize("ranks_there", [0, 1, 2])
def test_whoever_comes_next_finishes_a_complete_one(ranks_there: int) -> None:
    """All rank manifests without a commit are committed by the next attempt; fewer are left alone."""
    store = MemoryStore()
    older = save(store, CheckpointId(attempt=2, step=50), some_state())
    for written in TWO[:ranks_there]:
        write_only(store, ID, some_state(), written)
    finished = finish_interrupted(store, xxh3)
    assert finished == (ID if ranks_there == 2 else None)
    assert committed(store) == ([older, ID] if ranks_there == 2 else [older])
    assert finish_interrupted(store, xxh3) is None


def test_only_what_is_newer_than_the_newest_commit_is_finished() -> None:
    """An older complete save would change nothing but the order in which things are pruned."""
    store = MemoryStore()
    write_only(store, ID, some_state())
    newest = save(store, CheckpointId(attempt=4, step=10), some_state())
    assert finish_interrupted(store, xxh3) is None
    assert committed(store) == [newest]


@pytest.mark.parametrize("damage", ["rubbish", "newer format", "another world size"])
def test_what_cannot_be_finished_is_passed_over(damage: str) -> None:
    """An unfinished save is invisible: one that is damaged, or of a newer Holdfast, stops nobody; the next is tried."""
    store = MemoryStore()
    write_only(store, ID, some_state())
    newest = CheckpointId(attempt=3, step=110)
    raw = {
        "rubbish": b"rubbish",
        "newer format": seal({"format": FORMAT + 1}, xxh3),
        "another world size": said(0, 2, newest).to_bytes(xxh3),
    }[damage]
    store.create(newest.folder + names.rank_manifest_file(0), [raw])
    assert finish_interrupted(store, xxh3) == ID


def test_the_manifest_is_that_of_rank_0() -> None:
    """What describes the step comes from rank 0, and each rank manifest is vouched for by its digest."""
    store = MemoryStore()
    for number, written in enumerate(TWO):
        about = {"reason": f"rank {number} said so"}
        write_only(store, ID, some_state(number), Written(ranks=written.ranks, about=about))
    manifest = commit.commit(store, xxh3, ToldClock(), ID, 2)
    assert manifest.step == {"reason": "rank 0 said so"}
    assert manifest.ranks == {
        name: xxh3(store.read(ID.folder + name)) for name in ("rank.r00000.json", "rank.r00001.json")
    }
