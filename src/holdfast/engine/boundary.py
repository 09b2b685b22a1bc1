"""What happens at a step boundary, the only place where anything happens: hear the keeper, decide, stage.

The training process copies memory and nothing else; see engine/keep for the rest.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..decide.interval import Cadence, Decision, due
from ..decide.interval import History as Passed
from ..errors import KeeperFailed, StoreError
from ..spec import names
from ..spec.events import SaveDeferred, Staged, WriteFailed
from ..spec.names import CheckpointId
from ..spec.ports import Clock, State
from .history import History
from .link import KeeperLink, Outcome
from .stage import Stager


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where training stands."""

    step: int
    micro: int
    """Micro-batches into an accumulation; 0 at an optimizer step."""
    epoch: int
    samples: int


class Boundary:
    """Decides and stages for one attempt."""

    def __init__(self, state: State, history: History, link: KeeperLink, stager: Stager, clock: Clock) -> None:
        self._state = state
        self._history = history
        self._link = link
        self._stager = stager
        self._clock = clock
        self._warmed = False
        self._deferred = False
        self._durable_s = 0.0
        self._saved_at = clock.monotonic()
        self._saved_step = 0
        self._last: tuple[Position, int] | None = None
        self._name = CheckpointId(attempt=0, step=-1)
        self.failure = ""
        """Why the last save that failed did."""
        self.parent: str | None = None
        """The checkpoint this attempt resumed from, then the last one it committed."""

    def begin(self, attempt: int, position: Position, parent: str | None) -> None:
        """Count from here: the position that `parent` holds already, or the very start."""
        self._name = CheckpointId(attempt=attempt, step=-1)
        self._saved_step = position.step
        self._last = None if parent is None else (position, self._history.revision)
        self.parent = parent

    def hear(self, tell: Callable[[str], None]) -> None:
        """Take what the keeper has to say; a save that failed is told. Raises: Superseded, KeeperFailed."""
        self._stager.settle()
        for outcome in [*self._link.poll(), *self._stager.worthless()]:
            self._learn(outcome, tell)

    def decide(self, cadence: Cadence, position: Position, asked: str | None) -> Decision:
        """Decide whether to save here."""
        return due(
            cadence,
            Passed(
                step=position.step,
                saved_step=self._saved_step,
                in_accumulation=position.micro > 0,
                seconds_since=self._clock.monotonic() - self._saved_at,
                durable_s=self._durable_s,
                asked=asked,
            ),
        )

    def warm(self) -> None:
        """After the first step the state has its final structure: get the buffers ready in the background."""
        if not self._warmed:
            self._warmed = True
            self._stager.warm(self._state.capture().parts)

    def save(self, position: Position, about: Mapping[str, Any], progress: Mapping[str, Any], config: bytes) -> bool:
        """Stage a snapshot of this position; False when every buffer is still being written and it has to wait.

        A machine without the memory for a buffer is told like a failed write.

        Raises: UnknownState.
        """
        slot = self._stager.free_slot()
        if slot is None:
            if not self._deferred:
                self._deferred = True
                self._link.record(SaveDeferred(at=self._clock.time(), step=position.step))
            return False
        began = self._clock.monotonic()
        checkpoint = self._next_name(position.step)
        capture = self._state.capture(overlap=self._stager.overlap)
        blobs = {names.documents_file(0): capture.documents(progress), names.METRICS: self._history.to_csv()}
        if config:
            blobs[names.CONFIG] = config
        step = {**about, "parent": self.parent, "metrics": self._history.at(position.step)}
        try:
            snapshot = self._stager.stage(slot, checkpoint, capture, blobs, step)
        except StoreError as error:
            self.failure = str(error)
            now = self._clock.time()
            self._link.record(WriteFailed(at=now, checkpoint=str(checkpoint), step=position.step, why=str(error)))
            raise
        now = self._clock.monotonic()
        self._link.record(
            Staged(
                at=self._clock.time(),
                step=position.step,
                reason=str(about["reason"]),
                state_bytes=snapshot.nbytes,
                stall_s=now - began,
            )
        )
        self._deferred = False
        self._saved_at, self._saved_step = now, position.step
        self._last = (position, self._history.revision)
        return True

    def wait_for_slots(self, deadline_s: float, tell: Callable[[str], None], *, every: bool = False) -> None:
        """Wait until a buffer is free, or with `every`, until everything staged is committed or has failed.

        Raises: KeeperFailed when the deadline passes; Superseded.
        """
        self._stager.fence()
        deadline = self._clock.monotonic() + deadline_s
        while self._stager.busy_slots if every else self._stager.free_slot() is None:
            for outcome in [*self._link.poll(0.1), *self._stager.worthless()]:
                self._learn(outcome, tell)
            if self._clock.monotonic() > deadline:
                raise KeeperFailed(f"the keeper (process {self._link.pid}) freed no buffer in {deadline_s:g} s")

    def is_saved(self, position: Position) -> bool:
        """Tell whether a snapshot of exactly this position and all that was reported was staged, and has not failed."""
        return self._last == (position, self._history.revision)

    def finish(self, ending: str, step: int, detail: str, deadline_s: float, tell: Callable[[str], None]) -> None:
        """Let the keeper finish everything. Raises: KeeperFailed, Superseded."""
        self._stager.fence()
        for outcome in self._link.finish(ending, step, detail, deadline_s):
            self._learn(outcome, tell)

    def _next_name(self, step: int) -> CheckpointId:
        again = self._name.again + 1 if self._name.step == step else 0
        self._name = replace(self._name, step=step, again=again)
        return self._name

    def _learn(self, outcome: Outcome, tell: Callable[[str], None]) -> None:
        if outcome.why:
            self.failure = outcome.why
            if outcome.checkpoint == str(self._name):
                self._last = None
            tell(
                f"SAVE FAILED: {outcome.checkpoint} was not committed: {outcome.why}. "
                "Older checkpoints are untouched, training goes on, and the next save tries again."
            )
        else:
            self._durable_s = outcome.durable_s
            self.parent = outcome.checkpoint
