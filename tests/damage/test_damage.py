"""Every kind of damage to every kind of object: what refuses it, in which words, and what is used instead.

Rule 3: every byte is covered by a digest in the manifest; nothing unverified is restored.
Rule 4: restore refuses rather than guesses, says why, tries the next.
"""

import functools
import itertools
import json
import os
import random
import re
from collections.abc import Callable, Iterator

import pytest

from holdfast.decide.retention import Keep
from holdfast.engine import attempts
from holdfast.engine.checkpoint import committed, open_checkpoint, verify
from holdfast.engine.prune import Rules, pin, pinned, prune
from holdfast.engine.restore import Restored, finish_interrupted, resume
from holdfast.errors import CheckpointError, NewerFormat, NoneUsable, RunHeld, StoreError, Unavailable
from holdfast.launchers.local import LocalProcesses
from holdfast.ledger import store as ledger
from holdfast.ledger.store import StoreLedger
from holdfast.spec import names
from holdfast.spec.attempts import Verdict
from holdfast.spec.events import KeeperStarted
from holdfast.spec.leaves import PAGE_BYTES
from holdfast.spec.manifest import FORMAT, seal
from holdfast.spec.names import CheckpointId
from holdfast.storage.digest import xxh3
from holdfast.storage.memory import MemoryStore
from holdfast.testing.clock import ToldClock
from tests.stand_ins import Hindered, Operation, PlainState, Written, save, some_state
from tests.threaded_keeper import World

OLD, MIDDLE, NEWEST = (CheckpointId(attempt=1, step=step) for step in (10, 20, 30))
HEADER_BYTES = PAGE_BYTES
"""Of both parts' files: their headers fit on one page."""


def state_at(step: int) -> PlainState:
    """Make a state of which every tensor changes from step to step, larger than a page."""
    return PlainState(
        {
            "model": {"weight": bytes((i * step) % 251 for i in range(2 * PAGE_BYTES)), "bias": bytes([step] * 12)},
            "optimizer": {"0.exp_avg": bytes((i + step) % 253 for i in range(PAGE_BYTES + 100))},
        }
    )


@functools.cache
def sound_run() -> dict[str, bytes]:
    """Make a run of three checkpoints, with everything else that a store holds."""
    store = MemoryStore()
    attempts.open_store(store, ToldClock(), lambda: "the-id")
    holder = {**LocalProcesses().describe(os.getpid()), "started": -1}
    claim = attempts.claim(store, LocalProcesses(), ToldClock(), holder, lambda text: None)
    attempts.announce_keeper(store, claim.attempt, 1, holder)
    for checkpoint in (OLD, MIDDLE, NEWEST):
        step = checkpoint.step
        extra = Written(
            metrics=f"step,loss\n{step},0.5\n".encode(), config=f"# {step}\nlr: 0.1\n".encode(), progress={"step": step}
        )
        save(store, checkpoint, state_at(step), extra)
    pin(store, OLD)
    events = StoreLedger(store, claim.attempt)
    for number in (1, 2):
        events.record(KeeperStarted(at=1.0, number=number, pid=7))
        events.flush()
    verdict = Verdict(attempt=1, ending="killed", step=30, checkpoint=str(NEWEST), detail="", ended_at=1.0)
    attempts.record_verdict(store, verdict)
    return {name: store.read(name) for name in store.list("")}


def fresh() -> MemoryStore:
    """Make a store with the sound run in it."""
    store = MemoryStore()
    for name, raw in sound_run().items():
        store.create(name, [raw])
    return store


def replace(store: MemoryStore, name: str, raw: bytes | None) -> None:
    """Change an object behind everybody's back; None removes it."""
    store.delete(name)
    if raw is not None:
        store.create(name, [raw])


def come_back(store: MemoryStore) -> tuple[Restored, PlainState]:
    """Do what the next attempt does, up to the restore."""
    attempts.open_store(store, ToldClock(), lambda: "another-id")
    attempts.claim(store, LocalProcesses(), ToldClock(), {"pid": 1}, lambda text: None)
    finish_interrupted(store, xxh3)
    state = state_at(0)
    restored = resume(store, xxh3, state, lambda checkpoint, documents: None)
    assert restored is not None
    return restored, state


def why_unsound(store: MemoryStore, checkpoint: CheckpointId) -> str:
    """Say what a deep verification finds; empty when nothing."""
    try:
        for _ in verify(store, xxh3, open_checkpoint(store, xxh3, checkpoint), deep=True):
            pass
    except CheckpointError as error:
        return str(error)
    return ""


def flip(at: int) -> Callable[[bytes, bytes], bytes]:
    """Change all bits of one byte; negative places count from the end."""
    return lambda raw, other: raw[: at % len(raw)] + bytes([raw[at] ^ 0xFF]) + raw[at % len(raw) + 1 :]


def zero_page(start: int) -> Callable[[bytes, bytes], bytes]:
    """Overwrite a page, or what there is of it, with zeros."""
    return lambda raw, other: raw[:start] + bytes(len(raw[start : start + PAGE_BYTES])) + raw[start + PAGE_BYTES :]


DAMAGES: dict[str, Callable[[bytes, bytes], bytes | None]] = {
    "delete": lambda raw, other: None,
    "cut to nothing": lambda raw, other: b"",
    "cut in half": lambda raw, other: raw[: len(raw) // 2],
    "cut the last byte": lambda raw, other: raw[:-1],
    "one byte more": lambda raw, other: raw + b"\0",
    "flip first": flip(0),
    "flip middle": lambda raw, other: flip(len(raw) // 2)(raw, other),
    "flip last": flip(-1),
    "zero first page": zero_page(0),
    "swap": lambda raw, other: other,
}
IN_PARTS: dict[str, Callable[[bytes, bytes], bytes | None]] = {
    "flip in header": flip(20),
    "flip in padding": flip(HEADER_BYTES - 2),
    "flip first tensor byte": flip(HEADER_BYTES),
    "zero a tensor page": zero_page(HEADER_BYTES),
}
MODEL, OPTIMIZER = names.part_file("model", 0), names.part_file("optimizer", 0)
RANK, DOCUMENTS = names.rank_manifest_file(0), names.documents_file(0)
FILES = [names.MANIFEST, RANK, MODEL, OPTIMIZER, DOCUMENTS, names.CONFIG, names.METRICS]
CASES = [(file, what) for file in FILES for what in DAMAGES if (file, what) != (names.MANIFEST, "delete")]
CASES += [(file, what) for file in (MODEL, OPTIMIZER) for what in IN_PARTS]


def expected(file: str, what: str) -> str:
    """Say, as a pattern, how the damage must be described."""
    if what == "delete":
        return "is missing"
    if file == names.MANIFEST:
        return f"is the manifest of {MIDDLE}" if what == "swap" else "its digest does not match its text"
    if file == RANK:
        return "is not the rank manifest that was committed"
    if what.startswith("cut") or what == "one byte more":
        return r"has \d+ bytes, \d+ were written"
    if file not in (MODEL, OPTIMIZER):
        return "the bytes are not what was committed"
    if what in ("flip first", "zero first page", "flip in header", "flip in padding"):
        return "its header is not what was committed"
    return r"(model|optimizer)/[a-z0-9_.]+: the bytes are not what was committed"


@pytest.mark.parametrize(("file", "what"), CASES, ids=[f"{file}-{what}" for file, what in CASES])
def test_damage_is_refused_in_words_and_the_next_older_one_is_used(file: str, what: str) -> None:
    """The refusal names the file and what is wrong with it; the state is wholly that of the older checkpoint."""
    store = fresh()
    mine, other = NEWEST.folder + file, MIDDLE.folder + file
    raw = store.read(mine)
    damaged = {**DAMAGES, **IN_PARTS}[what](raw, store.read(other))
    assert damaged != raw
    if what == "swap":
        replace(store, other, raw)
    replace(store, mine, damaged)
    refusal = rf"{re.escape(mine)}:? {expected(file, what)}"
    assert re.fullmatch(refusal, why_unsound(store, NEWEST))
    restored, state = come_back(store)
    used = OLD if what == "swap" else MIDDLE
    assert restored.checkpoint.id == used
    assert [name for name, _ in restored.refused] == [str(NEWEST), str(MIDDLE)][: 2 if what == "swap" else 1]
    assert re.fullmatch(refusal, restored.refused[0][1])
    assert state.values == state_at(used.step).values
    assert state.progress == {"step": used.step}
    assert restored.metrics == f"step,loss\n{used.step},0.5\n".encode()


@pytest.mark.parametrize(("file", "what"), CASES, ids=[f"{file}-{what}" for file, what in CASES])
def test_damage_to_an_older_one_does_not_matter(file: str, what: str) -> None:
    """The newest is restored; verifying the old one finds the damage all the same, and nothing is deleted over it."""
    store = fresh()
    damaged = {**DAMAGES, **IN_PARTS}[what](store.read(OLD.folder + file), store.read(MIDDLE.folder + file))
    replace(store, OLD.folder + file, damaged)
    assert why_unsound(store, OLD)
    restored, state = come_back(store)
    assert (restored.checkpoint.id, restored.refused) == (NEWEST, ())
    assert state.values == state_at(NEWEST.step).values


def test_a_deleted_manifest_is_written_again() -> None:
    """Without its manifest the newest is no checkpoint; but its ranks' manifests are there: the commit is finished."""
    store = fresh()
    before = store.read(NEWEST.manifest)
    replace(store, NEWEST.manifest, None)
    assert committed(store) == [OLD, MIDDLE]
    restored, state = come_back(store)
    assert (restored.checkpoint.id, restored.refused) == (NEWEST, ())
    assert state.values == state_at(NEWEST.step).values
    assert store.read(NEWEST.manifest) == before


@pytest.mark.parametrize("file", [RANK, MODEL, DOCUMENTS])
def test_a_deleted_manifest_and_something_else(file: str) -> None:
    """What is finished is not trusted: without rank manifest it stays unfinished, with a file gone it is refused."""
    store = fresh()
    replace(store, NEWEST.manifest, None)
    replace(store, NEWEST.folder + file, None)
    restored, _ = come_back(store)
    assert restored.checkpoint.id == MIDDLE
    assert [name for name, _ in restored.refused] == ([] if file == RANK else [str(NEWEST)])


def test_a_deleted_manifest_of_an_older_one_is_left_alone() -> None:
    """What is older than the newest commit is not finished; the next prune takes it for leftovers."""
    store = fresh()
    replace(store, MIDDLE.manifest, None)
    restored, _ = come_back(store)
    assert restored.checkpoint.id == NEWEST
    assert committed(store) == [OLD, NEWEST]
    report = prune(store, xxh3, Rules(keep=Keep(last=3), metric_at=lambda step: None, writing_from=2))
    assert {names.checkpoint_of(name) for name in report.leftovers} == {MIDDLE}


@pytest.mark.parametrize("files", list(itertools.product([MODEL, RANK], repeat=3)), ids="+".join)
def test_all_damaged_is_an_error_that_lists_each(files: tuple[str, str, str]) -> None:
    """Never a silent fresh start: every checkpoint is named with its reason, newest first, and nothing is changed."""
    store = fresh()
    for checkpoint, file in zip((OLD, MIDDLE, NEWEST), files, strict=True):
        replace(store, checkpoint.folder + file, store.read(checkpoint.folder + file)[:-1])
    before = store.list("")
    with pytest.raises(NoneUsable) as refusal:
        resume(store, xxh3, state_at(0), lambda checkpoint, documents: None)
    assert [name for name, _ in refusal.value.refusals] == [str(NEWEST), str(MIDDLE), str(OLD)]
    for checkpoint, file in zip((OLD, MIDDLE, NEWEST), files, strict=True):
        assert f"- {checkpoint}: {checkpoint.folder}{file}: " in str(refusal.value)
    assert "No checkpoint was changed or deleted" in str(refusal.value)
    assert store.list("") == before


def places(rng: random.Random) -> Iterator[tuple[str, int, int]]:
    """Choose an object of the newest checkpoint, a place in it, and bits to change, again and again."""
    mine = [name for name in sound_run() if names.checkpoint_of(name) == NEWEST]
    while True:
        name = rng.choice(mine)
        yield name, rng.randrange(len(sound_run()[name])), 1 << rng.randrange(8)


def test_one_flipped_bit_anywhere_is_refused() -> None:
    """Rule 3, two hundred times at random: any bit of any file of the newest checkpoint; the file is named."""
    store = fresh()
    for name, at, bits in itertools.islice(places(random.Random(20)), 200):
        raw = sound_run()[name]
        replace(store, name, raw[:at] + bytes([raw[at] ^ bits]) + raw[at + 1 :])
        state = state_at(0)
        restored = resume(store, xxh3, state, lambda checkpoint, documents: None)
        assert restored is not None
        assert restored.checkpoint.id == MIDDLE, f"{name}, byte {at}, bits {bits}"
        assert restored.refused[0][1].startswith(name)
        assert state.values == state_at(MIDDLE.step).values
        assert why_unsound(store, NEWEST).startswith(name)
        replace(store, name, raw)


def test_a_newest_one_that_cannot_be_read_is_passed_over() -> None:
    """A disk that fails on one file: refused with the reason, and the next older one is used."""
    store = fresh()

    def bad_sector(operation: Operation, name: str) -> None:
        if operation == "read_into" and name == NEWEST.folder + MODEL:
            raise Unavailable(name, "input/output error")

    state = state_at(0)
    restored = resume(Hindered(store, bad_sector), xxh3, state, lambda checkpoint, documents: None)
    assert restored is not None
    assert restored.refused == ((str(NEWEST), f"{NEWEST.folder}{MODEL}: input/output error"),)
    assert state.values == state_at(MIDDLE.step).values


def test_a_newer_format_is_no_damage() -> None:
    """It stops, because going back would lose work without need; allowed by name, the next older one is used."""
    store = fresh()
    replace(store, NEWEST.manifest, seal({"format": FORMAT + 1}, xxh3))
    with pytest.raises(NewerFormat, match=re.escape(NEWEST.manifest)):
        resume(store, xxh3, state_at(0), lambda checkpoint, documents: None)
    restored = resume(store, xxh3, state_at(0), lambda checkpoint, documents: None, ["format"])
    assert restored is not None
    assert restored.checkpoint.id == MIDDLE


OTHERS = [
    names.RUN, names.claim(1), names.keeper(1, 1), names.verdict(1), OLD.pin,
    names.ledger_segment(1, 1), names.ledger_segment(1, 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "what"), list(itertools.product(OTHERS, [w for w in DAMAGES if w != "swap"])))
def test_damage_to_anything_else_stops_nobody(name: str, what: str) -> None:
    """Run id, claim, keeper, verdict, pin, ledger: the newest checkpoint is restored as if nothing were wrong."""
    store = fresh()
    replace(store, name, DAMAGES[what](store.read(name), b""))
    restored, state = come_back(store)
    assert (restored.checkpoint.id, restored.refused) == (NEWEST, ())
    assert state.values == state_at(NEWEST.step).values
    assert store.list(names.ATTEMPTS)[-1] == names.claim(2)
    assert pinned(store) == (set() if (name, what) == (OLD.pin, "delete") else {OLD})
    event_lost = name.startswith(names.LEDGER) and what not in ("cut the last byte", "one byte more")
    assert len(list(ledger.read(store))) == (1 if event_lost else 2)


@pytest.mark.parametrize("name", [names.RUN, names.claim(1), names.keeper(1, 1), names.verdict(1)])
@pytest.mark.parametrize("bits", [0x01, 0x10, 0xFF])
def test_no_flip_in_what_an_attempt_left_stops_the_next(name: str, bits: int) -> None:
    """Every single byte, one after the other: the next attempt is claimed, or a living process is respected."""
    store = fresh()
    raw = store.read(name)
    for at in range(len(raw)):
        replace(store, name, raw[:at] + bytes([raw[at] ^ bits]) + raw[at + 1 :])
        attempts.open_store(store, ToldClock(), lambda: "another-id")
        claim = attempts.claim(store, LocalProcesses(), ToldClock(), {"pid": 1}, lambda text: None)
        assert claim.attempt == 2
        replace(store, names.claim(2), None)


def test_a_deleted_claim_does_not_free_its_number() -> None:
    """A number that left a checkpoint, a keeper or a verdict is never used again: names would not be unique."""
    for left in ([NEWEST.manifest], [names.keeper(1, 1)], [names.verdict(1)]):
        store = MemoryStore()
        for name in [names.RUN, *left]:
            store.create(name, [sound_run()[name]])
        claim = attempts.claim(store, LocalProcesses(), ToldClock(), {"pid": 1}, lambda text: None)
        assert claim.attempt == 2


def test_a_living_trainer_is_respected_whatever_else_is_damaged() -> None:
    """Without a verdict and with its process alive the run is held, even if the keeper's object is rubbish."""
    store = fresh()
    replace(store, names.verdict(1), None)
    replace(store, names.keeper(1, 1), b"\xff")
    holder = LocalProcesses().describe(os.getpid())
    replace(store, names.claim(1), json.dumps({"holder": holder}).encode())
    with pytest.raises(RunHeld, match=f"process {os.getpid()} on"):
        attempts.claim(store, LocalProcesses(), ToldClock(), {"pid": 1}, lambda text: None)


def shared_base_run(base: bytes) -> tuple[MemoryStore, str]:
    """Make a run whose three checkpoints share a frozen base; return the file it lies in."""
    store = MemoryStore()
    world = World(store, keep=Keep(last=3))
    for step in (10, 20, 30):
        world.stage(step, PlainState({"model": {"base": base, "head": bytes([step] * 9)}}))
        world.outcomes(1)
    world.finish()
    return store, OLD.folder + MODEL


SHARED_DAMAGES = ["delete", "cut in half", "flip first tensor byte", "zero a tensor page"]


@pytest.mark.parametrize(("what", "fill"), [(w, 7) for w in SHARED_DAMAGES] + [("cut in half", 0)])
def test_damage_to_a_shared_file_refuses_all_that_share_it(what: str, fill: int) -> None:
    """Every checkpoint whose leaves lie in the file is refused, naming it; also if only zeros were cut off."""
    store, shared = shared_base_run(bytes([fill] * 9000))
    replace(store, shared, {**DAMAGES, **IN_PARTS}[what](store.read(shared), b""))
    with pytest.raises(NoneUsable) as refusal:
        resume(store, xxh3, PlainState({"model": {"base": bytes(9000), "head": bytes(9)}}), lambda c, d: None)
    assert all(shared in why for _, why in refusal.value.refusals)
    assert len(refusal.value.refusals) == 3
    assert all(shared in why_unsound(store, checkpoint) for checkpoint in (OLD, MIDDLE, NEWEST))


@pytest.mark.parametrize("what", ["delete", "cut in half"])
def test_a_shared_file_that_is_gone_or_too_short_is_found_without_reading_it(what: str) -> None:
    """A prune looks at names and lengths only; that is enough to hold it back."""
    store, shared = shared_base_run(bytes(9000))
    replace(store, shared, DAMAGES[what](store.read(shared), b""))
    save(store, CheckpointId(attempt=1, step=40), some_state())
    report = prune(store, xxh3, Rules(keep=Keep(last=2), metric_at=lambda step: None))
    assert f"{NEWEST} does not verify ({shared}" in report.held_back


def test_damage_to_the_part_of_a_shared_file_that_is_not_shared() -> None:
    """The older one's header and head are its own: only it is refused."""
    store, shared = shared_base_run(bytes([7] * 9000))
    replace(store, shared, flip(-1)(store.read(shared), b""))
    assert shared in why_unsound(store, OLD)
    assert why_unsound(store, MIDDLE) == why_unsound(store, NEWEST) == ""
    restored = resume(store, xxh3, PlainState({"model": {"base": bytes(9000), "head": bytes(9)}}), lambda c, d: None)
    assert restored is not None
    assert restored.checkpoint.id == NEWEST


def test_nothing_was_committed_and_nothing_can_be_listed() -> None:
    """An empty store is a fresh start; one that cannot be listed is an error, not a fresh start."""
    store = MemoryStore()
    assert resume(store, xxh3, some_state(), lambda checkpoint, documents: None) is None

    def away(operation: Operation, name: str) -> None:
        if operation == "list":
            raise Unavailable(name, "the server is away")

    with pytest.raises(StoreError):
        resume(Hindered(store, away), xxh3, some_state(), lambda checkpoint, documents: None)
