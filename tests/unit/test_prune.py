"""Prune: what goes, in which order, and when nothing goes.

Rule 5: only prune deletes, and never below two verified checkpoints; a newer one is committed before an older one goes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from holdfast.decide.retention import Keep
from holdfast.engine import commit, write
from holdfast.engine.checkpoint import committed, open_checkpoint, verify
from holdfast.engine.prune import PruneReport, Rules, discard, pin, pinned, prune, unpin
from holdfast.engine.restore import finish_interrupted, resume
from holdfast.errors import NoSuchCheckpoint, StoreError, Unavailable
from holdfast.spec import names
from holdfast.spec.names import CheckpointId
from holdfast.storage.digest import xxh3
from holdfast.storage.memory import MemoryStore
from holdfast.testing.clock import ToldClock
from tests.stand_ins import Hindered, Operation, PlainState, save, some_state, write_only

TWO = Keep(last=2)


def run_of(steps: Sequence[int], attempt: int = 1) -> tuple[MemoryStore, list[CheckpointId]]:
    """Make a store with a committed checkpoint at each step."""
    store = MemoryStore()
    made = [save(store, CheckpointId(attempt=attempt, step=step), some_state(step)) for step in steps]
    return store, made


def tidy(store: MemoryStore, rules: Rules | None = None) -> PruneReport:
    """Prune with retention of two."""
    return prune(store, xxh3, rules or Rules(keep=TWO, metric_at=lambda step: None))


def damage(store: MemoryStore, name: str, change: Callable[[bytes], bytes] | None) -> None:
    """Replace an object's bytes behind the store's back, or remove it."""
    raw = store.read(name)
    store.delete(name)
    if change is not None:
        store.create(name, [change(raw)])


def all_verify(store: MemoryStore) -> None:
    """Check every byte of every committed checkpoint."""
    for checkpoint in committed(store):
        for _ in verify(store, xxh3, open_checkpoint(store, xxh3, checkpoint), deep=True):
            pass


def test_the_oldest_go_whole() -> None:
    """Every object of what retention lets go is gone, every other object is as it was."""
    store, made = run_of([10, 20, 30, 40])
    kept = {name: store.read(name) for c in made[2:] for name in store.list(c.folder)}
    gone = sum(len(store.list(c.folder)) for c in made[:2])
    report = tidy(store)
    assert report.retention.let_go == tuple(made[:2])
    assert report.deleted == gone
    assert {name: store.read(name) for name in store.list(names.CHECKPOINTS)} == kept
    assert tidy(store).deleted == 0


def test_a_dry_run_tells_and_deletes_nothing() -> None:
    """The same report, and not one object less."""
    store, made = run_of([10, 20, 30])
    before = store.list("")
    report = tidy(store, Rules(keep=TWO, metric_at=lambda step: None, dry_run=True))
    assert report.retention.let_go == (made[0],)
    assert report.deleted == 0
    assert store.list("") == before


def test_manifest_first_then_rank_manifests() -> None:
    """A prune that stops anywhere leaves no checkpoint with a file missing, and nothing that a resume would commit."""
    for stop_after in range(40):
        store, made = run_of([10, 20, 30])
        left = stop_after

        def power(operation: Operation, name: str) -> None:
            nonlocal left
            if operation == "delete":
                left -= 1
                if left < 0:
                    raise Unavailable(name, "gone")

        try:
            prune(Hindered(store, power), xxh3, Rules(keep=TWO, metric_at=lambda step: None))
            finished = True
        except StoreError:
            finished = False
        assert finish_interrupted(store, xxh3) is None
        all_verify(store)
        assert committed(store) == (made if stop_after == 0 else made[1:])
        tidy(store)
        assert store.list(made[0].folder) == []
        if finished:
            return
    raise AssertionError("the prune never came to its end")


def reference_into(store: MemoryStore, older: CheckpointId, newer: CheckpointId) -> str:
    """Commit a checkpoint whose model lies in an older one's file; return that file's name."""
    source = open_checkpoint(store, xxh3, older).ranks[0]
    file = older.folder + names.part_file("model", 0)
    state = PlainState({"optimizer": {"m": bytes([newer.step] * 50)}})
    write_only(store, newer, state)
    name = newer.folder + names.rank_manifest_file(0)
    own = type(source).from_bytes(store.read(name), name, xxh3)
    store.delete(name)
    shared = tuple(stored for stored in source.leaves if stored.file == file)
    write.write_rank_manifest(store, xxh3, replace(own, leaves=own.leaves + shared))
    commit.commit(store, xxh3, ToldClock(), newer, 1)
    return file


def test_a_file_that_a_newer_checkpoint_points_into_survives() -> None:
    """The older checkpoint is gone, the shared file is not; it goes with the last checkpoint that needs it."""
    store, made = run_of([10])
    newer = [CheckpointId(attempt=1, step=step) for step in (20, 30)]
    shared = {reference_into(store, made[0], checkpoint) for checkpoint in newer}
    report = tidy(store)
    assert report.retention.let_go == (made[0],)
    assert committed(store) == newer
    assert store.list(made[0].folder) == sorted(shared)
    all_verify(store)
    assert tidy(store).leftovers == ()
    for step in (40, 50):
        save(store, CheckpointId(attempt=1, step=step), some_state(step))
    tidy(store)
    assert store.list(made[0].folder) == []
    all_verify(store)


def test_leftovers_of_interrupted_saves_go() -> None:
    """Files without a manifest, temporaries within committed checkpoints, at any age; objects elsewhere stay."""
    store, made = run_of([10, 20, 30])
    write_only(store, CheckpointId(attempt=1, step=15), some_state())
    store.create(CheckpointId(attempt=1, step=40).folder + "model.r00000.safetensors", [b"half"])
    store.create(made[2].folder + ".manifest.json.12-0.partial", [b"half"])
    store.create("checkpoints/README", [b"not ours"])
    store.create("checkpoints/0000000010-a1/manifest.json", [b"not ours"])
    store.create(names.claim(1), [b"{}"])
    report = tidy(store, Rules(keep=TWO, metric_at=lambda step: None, writing_from=2))
    assert len(report.leftovers) == 6 + 1 + 1
    left = store.list("")
    assert "checkpoints/README" in left
    assert "checkpoints/0000000010-a1/manifest.json" in left
    assert names.claim(1) in left
    assert {names.checkpoint_of(name) for name in left if name.startswith(names.CHECKPOINTS)} == {None, *made[1:]}


def test_what_may_be_being_written_is_left_alone() -> None:
    """Unfinished saves of the attempts that may be writing are no leftovers; older attempts' are."""
    store, _ = run_of([10, 20, 30])
    writing = CheckpointId(attempt=3, step=40)
    write_only(store, CheckpointId(attempt=2, step=35), some_state())
    write_only(store, writing, some_state())
    before = store.list(writing.folder)
    report = tidy(store, Rules(keep=TWO, metric_at=lambda step: None, writing_from=3))
    assert store.list(writing.folder) == before
    assert {names.checkpoint_of(name) for name in report.leftovers} == {CheckpointId(attempt=2, step=35)}
    assert tidy(store, Rules(keep=TWO, metric_at=lambda step: None, writing_from=4)).leftovers == tuple(before)


def test_pins() -> None:
    """A pinned checkpoint outlives every rule until it is unpinned; only a committed one can be pinned."""
    store, made = run_of([10, 20, 30])
    pin(store, made[0])
    pin(store, made[0])
    assert pinned(store) == {made[0]}
    assert tidy(store).retention.let_go == ()
    unpin(store, made[0])
    unpin(store, made[0])
    assert pinned(store) == set()
    assert tidy(store).retention.let_go == (made[0],)
    with pytest.raises(NoSuchCheckpoint, match=r"0000000010-a000001.*0000000020-a000001, 0000000030-a000001"):
        pin(store, made[0])


def test_the_remains_of_a_pin_are_none() -> None:
    """A temporary of an interrupted `pin` pins nothing, and a damaged pin still pins: its name is what counts."""
    store, made = run_of([10, 20])
    store.create(f"pins/.{made[0]}.json.7-0.partial", [b""])
    assert pinned(store) == set()
    store.create(made[0].pin, [b"\xffrubbish"])
    assert pinned(store) == {made[0]}


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes] | None]] = {
    "manifest flipped": (names.MANIFEST, lambda raw: raw[:-9] + b"x" + raw[-8:]),
    "rank manifest gone": (names.rank_manifest_file(0), None),
    "documents gone": (names.documents_file(0), None),
    "model cut": (names.part_file("model", 0), lambda raw: raw[:-1]),
    "model header flipped": (names.part_file("model", 0), lambda raw: b"\xff" + raw[1:]),
    "metrics longer": (names.METRICS, lambda raw: raw + b"x"),
}


@pytest.mark.parametrize("survivor", [1, 2])
@pytest.mark.parametrize("what", DAMAGES)
def test_held_back_while_a_survivor_is_damaged(survivor: int, what: str) -> None:
    """Rule 5: if one of the two that would be left does not verify, nothing goes, and the report names it."""
    store, made = run_of([10, 20, 30])
    file, change = DAMAGES[what]
    damage(store, made[survivor].folder + file, change)
    before = store.list("")
    report = tidy(store)
    assert str(made[survivor]) in report.held_back
    assert report.deleted == 0
    assert store.list("") == before


@pytest.mark.parametrize("survivor", [1, 2])
@pytest.mark.parametrize("deep", [False, True])
def test_only_a_deep_prune_sees_a_flipped_byte(survivor: int, deep: bool) -> None:
    """Lengths and headers do not tell of a flipped byte in a tensor; read whole, the survivor holds everything back."""
    store, made = run_of([10, 20, 30])
    damage(store, made[survivor].folder + names.part_file("model", 0), lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]))
    report = tidy(store, Rules(keep=TWO, metric_at=lambda step: None, deep=deep))
    assert (str(made[survivor]) in report.held_back) is deep
    assert committed(store) == (made if deep else made[1:])


def test_a_damaged_one_that_goes_holds_nothing_back() -> None:
    """Only survivors are looked at: an unreadable old checkpoint is deleted like any other."""
    store, made = run_of([10, 20, 30])
    damage(store, made[0].manifest, lambda raw: b"rubbish")
    assert tidy(store).held_back == ""
    assert store.list(made[0].folder) == []


def test_a_refused_one_is_replaced_by_two_sound_ones() -> None:
    """What a resume found damaged does not count; it goes when two newer sound ones are there, and the floor holds."""
    store, made = run_of([10, 20, 30])
    damage(store, made[2].folder + names.part_file("model", 0), lambda raw: raw[:-1])
    rules = Rules(keep=TWO, metric_at=lambda step: None, refused=[made[2]])
    assert tidy(store, rules).deleted == 0
    newer = [save(store, CheckpointId(attempt=2, step=25), some_state())]
    tidy(store, rules)
    assert committed(store) == [*made[1:], *newer]
    newer.append(save(store, CheckpointId(attempt=2, step=35), some_state()))
    tidy(store, rules)
    assert committed(store) == newer
    all_verify(store)


def test_best_by_metric() -> None:
    """The metric of a step decides, as the history tells it."""
    store, made = run_of([10, 20, 30, 40, 50])
    values = {10: 3.0, 20: 1.0, 30: 2.0, 40: 9.0, 50: 9.0}
    keep = Keep(last=2, best=1, metric="loss")
    tidy(store, Rules(keep=keep, metric_at=values.__getitem__))
    assert committed(store) == [made[1], *made[3:]]


def test_the_newest_two_restore_after_any_number_of_prunes() -> None:
    """Save and prune, twenty times over: at every moment the newest restores, and it is the right one."""
    store = MemoryStore()
    for step in range(1, 21):
        save(store, CheckpointId(attempt=1, step=step), some_state(step))
        tidy(store)
        assert len(committed(store)) == min(step, 2)
        state = some_state(0)
        restored = resume(store, xxh3, state, lambda checkpoint, documents: None)
        assert restored is not None
        assert restored.checkpoint.id.step == step
        assert state.values == some_state(step).values


def test_discard_never_touches_a_committed_one() -> None:
    """Only what has no manifest goes, and only of that checkpoint."""
    store, made = run_of([10, 20])
    before = store.list("")
    discard(store, made[1])
    assert store.list("") == before
    failed = CheckpointId(attempt=1, step=30)
    write_only(store, failed, some_state())
    discard(store, failed)
    assert store.list("") == before


def test_a_discard_that_stops_half_way_leaves_nothing_to_commit() -> None:
    """The rank manifest goes first: the next attempt cannot mistake the rest for a complete save."""
    store, made = run_of([10])
    failed = CheckpointId(attempt=1, step=20)
    write_only(store, failed, some_state())
    deleted = 0

    def power(operation: Operation, name: str) -> None:
        nonlocal deleted
        deleted += operation == "delete"
        if deleted > 1:
            raise Unavailable(name, "gone")

    with pytest.raises(Unavailable):
        discard(Hindered(store, power), failed)
    assert finish_interrupted(store, xxh3) is None
    assert committed(store) == made
