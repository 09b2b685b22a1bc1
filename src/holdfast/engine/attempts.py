"""Claim the next attempt, by conditional create: the number is the fence that stops older attempts.

Rule 9: every wait has a deadline and says who is missing.
    (tests/scenario/test_takeover.py)
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..decide.takeover import Action, LastAttempt, judge
from ..errors import AlreadyExists, NewerFormat, NotAStore, NotFound, RunHeld
from ..spec import names
from ..spec.attempts import Claim, Verdict, describe
from ..spec.ports import Clock, Processes, Store

FORMAT = 1
_LOOK_EVERY_S = 0.05


def open_store(store: Store, clock: Clock, new_id: Callable[[], str]) -> str:
    """Make sure that the place holds a run, or nothing yet; return the run's id.

    A damaged run.json stops nobody, since nothing depends on it: the id then reads as "unknown".

    Raises: NotAStore when the place holds something else; NewerFormat; StoreError.
    """
    try:
        return _run_id(store.read(names.RUN))
    except NotFound:
        pass  # a new run, or no run at all
    ours = (*names.TOP_LEVEL, f".{names.RUN}")
    foreign = [name for name in store.list("", shallow=True) if not name.startswith(ours)]
    if foreign:
        raise NotAStore(store.url, foreign)
    run_id = new_id()
    try:
        store.create(
            names.RUN, [json.dumps({"format": FORMAT, "run": run_id, "created_at": clock.time()}).encode() + b"\n"]
        )
    except AlreadyExists:
        return _run_id(store.read(names.RUN))
    return run_id


def claim(
    store: Store, processes: Processes, clock: Clock, holder: Mapping[str, Any], tell: Callable[[str], None]
) -> Claim:
    """Claim the next attempt for `holder`; wait for the keeper of a dead trainer to finish its last commit.

    After ten minutes the keeper is overtaken: it will find the newer claim and stop writing.

    Raises: RunHeld when another live process trains the run; StoreError.
    """
    deadline = clock.monotonic() + 600.0
    told: int | None = None
    while True:
        number, last = last_attempt(store, processes)
        decision = judge(last)
        if decision.action is Action.REFUSE:
            raise RunHeld(store.url, describe(decision.holder or {}))
        if decision.action is Action.WAIT and clock.monotonic() < deadline:
            if told != number:
                tell(f"waiting for the keeper of attempt {number} ({describe(decision.holder or {})}) to finish")
                told = number
            clock.sleep(_LOOK_EVERY_S)
            continue
        mine = Claim(attempt=number + 1, holder=holder, claimed_at=clock.time())
        try:
            store.create(names.claim(mine.attempt), [json.dumps(mine.to_json()).encode() + b"\n"])
        except AlreadyExists:
            continue
        return mine


def last_attempt(store: Store, processes: Processes) -> tuple[int, LastAttempt | None]:
    """Tell the newest attempt's number (0 when there is none) and what is left of it. Raises: StoreError.

    Whatever an attempt left counts, so that its number is not used again even if its claim is lost.
    """
    listed = store.list(names.ATTEMPTS)
    number = max((names.attempt_of(name) or 0 for name in (*listed, *store.list(names.CHECKPOINTS))), default=0)
    if number == 0:
        return 0, None
    trainer = read_holder(store, names.claim(number))
    keepers = [read_holder(store, name) for name in listed if (names.keeper_of(name) or (0, 0))[0] == number]
    return number, LastAttempt(
        trainer=trainer,
        trainer_alive=processes.alive(trainer) if trainer else False,
        keepers_alive=[holder for holder in keepers if holder and processes.alive(holder)],
        ended=names.verdict(number) in listed,
    )


def announce_keeper(store: Store, attempt: int, number: int, holder: Mapping[str, Any]) -> None:
    """Say which process is the n-th keeper of an attempt, so that the next attempt can wait for it.

    Raises: StoreError.
    """
    store.create(
        names.keeper(attempt, number), [json.dumps({"format": FORMAT, "holder": dict(holder)}).encode() + b"\n"]
    )


def record_verdict(store: Store, verdict: Verdict) -> None:
    """Say how an attempt ended; the first word stands. Raises: StoreError other than AlreadyExists."""
    try:
        store.create(names.verdict(verdict.attempt), [json.dumps(verdict.to_json()).encode() + b"\n"])
    except AlreadyExists:
        return


def read_holder(store: Store, name: str) -> Mapping[str, Any] | None:
    """Read who holds a claim; None when the object is lost or damaged: nobody can be recognised by it."""
    try:
        holder = json.loads(store.read(name))["holder"]
    except (NotFound, ValueError, KeyError, TypeError):
        return None
    return holder if isinstance(holder, dict) else None


def _run_id(raw: bytes) -> str:
    try:
        described = json.loads(raw)
        run_id, version = str(described["run"]), int(described["format"])
    except (ValueError, KeyError, TypeError):
        return "unknown"
    if version > FORMAT:
        raise NewerFormat(names.RUN, version, FORMAT)
    return run_id
