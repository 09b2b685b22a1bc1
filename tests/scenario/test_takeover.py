"""One attempt follows another while something of the older one still lives: its keeper, or all of it elsewhere.

Rule 9: every wait has a deadline and says who is missing.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import wiring
from holdfast.engine import attempts
from holdfast.engine.past import read_verdict
from holdfast.spec.attempts import Verdict
from holdfast.spec.names import CheckpointId

from .kills import Sight
from .torture import TRAIN
from .zygote import Process, Zygote, keepers_of

pytestmark = pytest.mark.slow

SLOW_SAVES = ("--ballast", "8", "--pace", "0.01")
DO_NOT_RETRY = 78


class Hurried:
    """A clock that runs a thousand times as fast, so that ten minutes of waiting pass in less than a second."""

    def time(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic() * 1000

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds / 1000)


def stopped_inside_a_save(process: Process, store: Sight) -> tuple[int, CheckpointId]:
    """Stop a trainer's keeper while it writes its second or a later checkpoint; return it, and what it writes."""
    stopped: list[tuple[int, CheckpointId]] = []

    def try_to() -> bool:
        writing = store.unfinished()
        if not store.committed() or not writing:
            return False
        (keeper,) = keepers_of(process.pid)
        os.kill(keeper, signal.SIGSTOP)
        until(lambda: status_of(keeper) == "T")
        if still := set(store.unfinished()) & set(writing):
            stopped.append((keeper, max(still)))
            return True
        os.kill(keeper, signal.SIGCONT)
        return False

    assert process.until(try_to)
    return stopped[0]


def status_of(pid: int) -> str:
    """The state letter of a process; X when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"


def until(condition: Any, deadline_s: float = 30.0) -> None:
    """Wait for something that is not about one trainer."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_next_attempt_waits_for_the_keeper_of_a_dead_trainer_and_goes_on_from_its_commit(
    zygote: Zygote, tmp_path: Path
) -> None:
    """The keeper outlives its trainer; what it holds is not lost, and who is waited for is said."""
    alone = zygote.run(TRAIN, tmp_path / "alone", *SLOW_SAVES)
    store = Sight(tmp_path / "run")
    first = zygote.start(TRAIN, store.path, *SLOW_SAVES)
    keeper, writing = stopped_inside_a_save(first, store)
    first.kill()
    assert zygote.finish(first) == -signal.SIGKILL
    second = zygote.start(TRAIN, store.path, *SLOW_SAVES)
    assert second.until(second.said)
    assert f"waiting for the keeper of attempt 1 (process {keeper} on " in second.said()
    assert store.claims() == 1, "it claimed before the keeper was done"
    os.kill(keeper, signal.SIGCONT)
    assert zygote.finish(second) == 0, second.said()
    resumed = CheckpointId.parse(second.said().partition("resumed from ")[2].split()[0])
    assert resumed is not None
    assert resumed >= writing
    assert second.lines()[-1] == alone.lines()[-1]
    verdict = read_verdict(wiring.open_store(store.path), 1)
    assert verdict is not None
    assert (verdict.ending, verdict.checkpoint) == ("killed", str(resumed))


def test_a_keeper_that_was_overtaken_commits_nothing_when_it_wakes(zygote: Zygote, tmp_path: Path) -> None:
    """After ten minutes a keeper that hangs is no longer waited for; the newer claim is its fence."""
    alone = zygote.run(TRAIN, tmp_path / "alone", *SLOW_SAVES)
    store = Sight(tmp_path / "run")
    first = zygote.start(TRAIN, store.path, *SLOW_SAVES)
    keeper, writing = stopped_inside_a_save(first, store)
    first.kill()
    zygote.finish(first)
    before = store.committed()
    objects = wiring.open_store(store.path)
    processes = wiring.LocalProcesses()
    told: list[str] = []
    claim = attempts.claim(objects, processes, Hurried(), processes.describe(os.getpid()), told.append)
    assert claim.attempt == 2
    assert f"waiting for the keeper of attempt 1 (process {keeper} " in told[0]
    os.kill(keeper, signal.SIGCONT)
    until(lambda: status_of(keeper) in "XZ")
    assert store.committed() == before
    assert writing not in before
    verdict = read_verdict(objects, 1)
    assert verdict is not None
    assert verdict.ending == "superseded"
    attempts.record_verdict(
        objects, Verdict(attempt=2, ending="exited", step=0, checkpoint=None, detail="", ended_at=time.time())
    )
    third = zygote.run(TRAIN, store.path, *SLOW_SAVES)
    assert third.exit_code == 0, third.said()
    # What the overtaken keeper had written completely is no rubbish: the owner of the run may finish that commit.
    assert "attempt 3 resumed from " in third.said()
    assert third.lines()[-1] == alone.lines()[-1]


def seems_to_be_elsewhere(store: Path) -> None:
    """Make the processes of all attempts so far look as if they ran on another machine, which nobody can look into."""
    for claim in (store / "attempts").glob("*.json"):
        body = json.loads(claim.read_bytes())
        if "holder" in body:
            body["holder"] |= {"boot": "another", "host": "another"}
            claim.write_text(json.dumps(body))


def test_a_trainer_that_was_taken_for_gone_stops_and_does_no_harm(zygote: Zygote, tmp_path: Path) -> None:
    """It may be the network that is gone, not the machine: the older attempt ends with 78 as soon as it saves."""
    alone = zygote.run(TRAIN, tmp_path / "alone")
    store = Sight(tmp_path / "run")
    first = zygote.start(TRAIN, store.path, "--pace", "0.02", "--epochs", "40")
    assert first.until(lambda: len(store.committed()) >= 2)
    seems_to_be_elsewhere(store.path)
    second = zygote.run(TRAIN, store.path)
    assert zygote.finish(first) == DO_NOT_RETRY
    assert "attempt 2 has taken over this run; attempt 1 stopped writing" in first.said()
    assert "Traceback" not in first.said()
    assert second.exit_code == 0, second.said()
    assert "attempt 2 resumed from " in second.said()
    assert second.lines()[-1] == alone.lines()[-1]
    assert store.committed()[-1].attempt == 2
    verdict = read_verdict(wiring.open_store(store.path), 1)
    assert verdict is not None
    assert verdict.ending == "superseded"
