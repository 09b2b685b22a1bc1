"""Holdfast as a contestant, and what only Holdfast is asked: a frozen base, an idle boundary, how soon it starts."""

import re
import statistics
import subprocess
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import holdfast
from holdfast import wiring
from holdfast.engine import attempts, restore
from holdfast.ledger import store as ledger
from holdfast.spec import names
from holdfast.spec.events import KeeperStarted, Staged
from holdfast.spec.names import CheckpointId
from holdfast.state.training import TrainingState

from . import limits, machine
from .contestants import Pending
from .state import Trained, bytes_of

SLOTS = 2
_NEVER = 1 << 60
_DEADLINE_S = 600.0
_WARM_UP_S = 60.0
_LOOK_EVERY_S = 0.002
_FROZEN_SAVES = 10
_BOUNDARIES = 1000
_IMPORTS = 3
_IMPORT = """
import sys, time
began = time.perf_counter()
import holdfast
taken = time.perf_counter() - began
assert "torch" not in sys.modules
print(taken)
"""


class Holdfast:
    """A run over the state that saves when it is told to."""

    def __init__(self, state: Trained, folder: Path) -> None:
        self._state = state
        self._store = wiring.open_store(folder / "store")
        settings = holdfast.Settings(every_steps=_NEVER, keep=holdfast.Keep(last=2), slots=SLOTS)
        self._run = holdfast.Run(self._store.url, state=state.parts, settings=settings)
        self._steps: dict[int, int] = {}

    def prepare(self) -> None:
        """Enter the run and pass one boundary, after which the staging buffers are made in the background."""
        self._run.__enter__()
        self._run.boundary()
        deadline = time.monotonic() + _WARM_UP_S
        while _shared_bytes() < SLOTS * self._state.nbytes and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)

    def save(self, number: int) -> Pending:
        """Stage at a boundary."""
        self.pass_boundary(save=True)
        self._steps[number] = self._run.step
        manifest = self.place(number) / names.MANIFEST

        def wait() -> None:
            deadline = time.monotonic() + _DEADLINE_S
            while not manifest.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{manifest} did not appear in {_DEADLINE_S:g} s")
                time.sleep(_LOOK_EVERY_S)

        return Pending(done=manifest.exists, wait=wait)

    def pass_boundary(self, *, save: bool) -> None:
        """Stand at a boundary, and ask for a save or not."""
        if save:
            self._run.save()
        self._run.boundary()

    def updating(self) -> AbstractContextManager[object]:
        """What is staged was copied before `boundary` returned."""
        return nullcontext()

    def place(self, number: int) -> Path:
        """The folder of one checkpoint."""
        checkpoint = CheckpointId(attempt=self._run.attempt, step=self._steps[number])
        return Path(self._store.url) / checkpoint.folder

    def discard(self, number: int) -> None:
        """Nothing to do: the keeper prunes."""

    def close(self) -> None:
        """Leave the run."""
        self._run.__exit__(None, None, None)

    def load(self, number: int) -> None:
        """Restore the newest checkpoint, verified, as entering a run does after its claim."""
        found = restore.resume(self._store, wiring.xxh3, TrainingState(self._state.parts), lambda *_: None)
        assert found is not None
        assert not found.refused
        assert found.checkpoint.id.step == self._steps[number]

    def stalls(self) -> list[float]:
        """Read from the ledger how long each save held training up."""
        return [event.stall_s for event in ledger.read(self._store) if isinstance(event, Staged)]

    def keeper_start_s(self) -> float:
        """Tell how long the keeper took from its process's start (known to 10 ms) to being ready."""
        holder = attempts.read_holder(self._store, names.keeper(self._run.attempt, 1))
        ready = next(event for event in ledger.read(self._store) if isinstance(event, KeeperStarted))
        assert holder is not None
        booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return ready.at - (booted_at + int(holder["started"]) / 100)


def frozen(state: Trained, folder: Path) -> dict[str, float | list[float]]:
    """Save ten times while only the adapters change; what saves 2 to 10 write, and how long they hold training up."""
    changing = state.changing
    changed = bytes_of(changing)
    values = limits.copies("copy_changed", changing, limits.memfd(changed))
    contestant = Holdfast(state, folder)
    contestant.prepare()
    stalls, written = [], []
    for number in range(1, _FROZEN_SAVES + 1):
        state.advance()
        began = time.perf_counter()
        pending = contestant.save(number)
        stalls.append(time.perf_counter() - began)
        pending.wait()
        written.append(float(machine.bytes_at(contestant.place(number))))
    contestant.close()
    return {
        **values,
        "state_bytes": float(state.nbytes),
        "changed_bytes": float(changed),
        "stall_s": stalls[1:],
        "written_bytes": written[1:],
        "first_written_bytes": written[0],
    }


def startup(state: Trained, folder: Path) -> dict[str, float | list[float]]:
    """Time the import, the keeper's start, and boundaries at which nothing is to be done."""
    command = [sys.executable, "-c", _IMPORT]
    imports = [float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(_IMPORTS)]
    contestant = Holdfast(state, folder)
    contestant.prepare()
    boundaries = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(_BOUNDARIES):
            contestant.pass_boundary(save=False)
        boundaries.append((time.perf_counter() - began) / _BOUNDARIES)
    contestant.close()
    return {
        "import_s": imports,
        "keeper_s": contestant.keeper_start_s(),
        "boundary_s": statistics.median(boundaries),
    }


def _shared_bytes() -> int:
    found = re.search(r"RssShmem:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) << 10 if found else 0
