"""Run: what a training script holds."""

import dataclasses
import importlib.metadata
import logging
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from . import wiring
from .decide import config as config_changes
from .decide import ending as ending_of
from .decide import exactness
from .decide.exactness import Exactness, Level
from .engine import attempts, restore
from .engine.boundary import Boundary, Position
from .engine.checkpoint import Checkpoint
from .engine.history import History
from .engine.link import KeeperLink
from .engine.stage import Stager
from .errors import ConfigChanged, Stop, StoreError, StoreUnusable, UsageError
from .settings import Settings, cadence
from .spec import encoding
from .spec.attempts import Ending
from .spec.events import AttemptStarted, Event, Resumed, StartedFresh
from .state import config as config_state
from .state import environment
from .state.feed import Feed
from .state.training import TrainingState

_log = logging.getLogger("holdfast")
_T = TypeVar("_T")
_FINAL_TRIES = 2


class Run:
    """One training, whatever it survives: the same lines for the first launch and for every restart.

    Entering the `with` block claims the next attempt and resumes from the newest checkpoint that verifies, if there is
    one. Between two batches lies a step boundary, the only place where anything happens. Leaving the block normally
    saves the final state and marks the run as finished; after an exception nothing half-done is saved.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        state: Mapping[str, Any],
        config: Any = None,
        may_lose: str | float | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Describe the run; nothing is touched before the `with` block.

        Args:
            url: the run's store; a folder's path. One folder per run.
            state: everything that training changes, by name: modules, optimizers, schedulers, scalers, averaged models,
                loaders, generators, whatever has state_dict and load_state_dict, and containers of plain data. RNG,
                counters, metrics and config are always included.
            config: a dict, dataclass or namespace of plain data; stored, and compared on every resume.
            may_lose: the work that may be lost, as time ("5min" or seconds). Default: ten minutes, unless `settings`
                say when to save.
            settings: everything else.

        Raises: UsageError, UnknownState.
        """
        self._settings = settings or Settings()
        self._cadence = cadence(may_lose, self._settings, os.environ)
        self._store = wiring.open_store(url)
        self._config = _loudly(lambda: config_state.plain(config))
        self._config_yaml = config_state.to_yaml(self._config)
        self._state = _loudly(lambda: TrainingState(state, allow_pickle=self._settings.allow_pickle))
        self._history = History()
        self._position = Position(step=0, micro=0, epoch=0, samples=0)
        self._feed: Feed | None = None
        self._ran = False
        self._in_batch = False
        self._steps_before: int | None = None
        self._accumulate = 1
        self._asked: str | None = None
        self._attempt = 0
        self._about: dict[str, Any] = {}
        self._pid = os.getpid()

    @property
    def step(self) -> int:
        """Optimizer steps completed."""
        return self._position.step

    @property
    def epoch(self) -> int:
        """The current epoch of the loader that `batches` goes over, from 0."""
        return self._feed.epoch if self._feed else self._position.epoch

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._attempt

    @property
    def accumulating(self) -> bool:
        """Whether the batch in hand is followed by another one before the optimizer steps."""
        ends_epoch = self._feed is not None and self._feed.last is True
        return self._position.micro + 1 < self._accumulate and not ends_epoch

    def __enter__(self) -> Self:
        """Claim the next attempt and resume. Raises: the `Stop` errors, each with what to do about it."""
        _speak_up()
        return _loudly(self._open)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Save the final state, unless an exception ends the run, and wait until it is durable."""
        if os.getpid() != self._pid:
            return  # a forked child leaves the block, not the training
        if error is None:
            _loudly(self._finish)
        else:
            ending, detail = ending_of.judge(error)
            _loudly(lambda: self._close(ending, detail))

    def batches(
        self, loader: Iterable[Any], *, epochs: int | None = None, steps: int | None = None, accumulate: int = 1
    ) -> Iterator[Any]:
        """Go over a loader's batches, with a step boundary after each; after a resume, from the next one on.

        Args:
            loader: a holdfast.DataLoader, or any loader (see the exactness levels for what others reach).
            epochs: go on until so many epochs are complete.
            steps: go on until so many optimizer steps are complete. With neither, the rest of the current epoch.
            accumulate: batches per optimizer step; the boundary lies after the last of them. The last batch of an epoch
                ends a step too, where the loader knows its length. `accumulating` tells whether to step the optimizer.

        Raises: StateMismatch, UsageError, UnknownState, Superseded, KeeperFailed.
        """
        _check_counts(epochs=epochs, steps=steps, accumulate=accumulate)
        self._check_open()
        self._leave_batch()  # an earlier loop may have been left in the middle
        self._accumulate = accumulate
        self._feed = feed = _loudly(lambda: self._state.feed(loader))

        def more() -> bool:
            return (epochs is None or feed.epoch < epochs) and (steps is None or self.step < steps)

        while more():
            whole, came = feed.consumed == 0, False
            for batch in feed:
                came = True
                self._in_batch, self._steps_before = True, self._state.steps
                yield batch
                self._complete_batch()
                if not more():
                    return
            if epochs is None and steps is None:
                return
            if whole and not came:
                raise UsageError("the loader has no batches; is drop_last set, and the dataset smaller than a batch?")

    def boundary(self) -> None:
        """Mark the end of an optimizer step, in loops that do not use `batches`. Raises: Superseded, KeeperFailed."""
        self._check_open()
        if self._in_batch:
            raise UsageError("run.batches makes the boundaries of its batches itself; leave run.boundary() out")
        self._pass(dataclasses.replace(self._position, step=self._position.step + 1, micro=0))

    def report(self, **metrics: Any) -> None:
        """Add metrics to this step's row of the history. Tensors are fine: nothing waits for the device.

        Between two epochs the row is that of the step just completed.

        Raises: UsageError for what is no number.
        """
        self._history.report(self.step + (1 if self._in_batch or self._feed is None else 0), metrics)

    def save(self) -> None:
        """Save at the next boundary, whatever the cadence says."""
        self._asked = "asked for by hand"

    def _check_open(self) -> None:
        if not self._attempt:
            raise UsageError("the run is not open; train inside its block: with holdfast.Run(...) as run:")

    def _open(self) -> Self:
        try:
            return self._claim_and_resume()
        except StoreError as error:
            raise StoreUnusable(self._store.url, str(error)) from error

    def _claim_and_resume(self) -> Self:
        self._state.capture()  # what cannot be stored is found now, not at the first save
        processes = wiring.LocalProcesses()
        holder = processes.describe(os.getpid())
        run_id = attempts.open_store(self._store, time, lambda: uuid.uuid4().hex)
        claim = attempts.claim(self._store, processes, time, holder, _log.info)
        self._attempt = claim.attempt
        self._link = KeeperLink(self._launch, self._duty(), time, _log.warning)
        self._record(AttemptStarted(at=claim.claimed_at, attempt=claim.attempt, holder=holder))
        stager = Stager(self._link, wiring.open_ranks(), time, self._settings.slots, overlap=self._settings.overlap)
        if self._settings.overlap:
            self._state.before_step(stager.fence)
        try:
            parent = self._resume()
        except BaseException as error:
            ending, detail = ending_of.judge(error)
            self._link.finish(ending, 0, detail, self._settings.finish_s)
            raise
        self._boundary = Boundary(self._state, self._history, self._link, stager, time)
        self._boundary.begin(claim.attempt, self._position, parent)
        self._about = {"run": run_id, "code": environment.code_revision(), **self._circumstances()}
        return self

    def _launch(self, number: int, sock: socket.socket) -> wiring.KeeperProcess:
        child = wiring.KeeperProcess(sock)
        holder = wiring.LocalProcesses().describe(child.pid)
        try:
            attempts.announce_keeper(self._store, self._attempt, number, holder)
        except StoreError as error:
            _log.warning("a later attempt will not wait for the keeper (process %d): %s", child.pid, error)
        return child

    def _duty(self) -> dict[str, Any]:
        return {"url": self._store.url, "attempt": self._attempt, "keep": dataclasses.asdict(self._settings.keep)}

    def _resume(self) -> str | None:
        """Restore the newest usable checkpoint, say so in one line, and return its name."""
        began = time.monotonic()
        finished = restore.finish_interrupted(self._store, wiring.xxh3)
        if finished is not None:
            _log.info("finished the commit of %s, which an earlier attempt had written completely", finished)
        found = restore.resume(self._store, wiring.xxh3, self._state, self._check, self._settings.allow)
        now = time.time()
        if found is None:
            _log.info("attempt %d of %s starts fresh: nothing is committed yet", self._attempt, self._store.url)
            self._record(StartedFresh(at=now))
            return None
        progress = encoding.unpack(found.documents["progress"])
        self._position = Position(**progress["position"])
        self._history = History(found.metrics)
        name = str(found.checkpoint.id)
        exact = self._exactness(found.checkpoint, progress["config"])
        as_hoped = exact.level is Level.BIT_EXACT and not found.refused
        line = _resume_line(self._attempt, name, self.step, exact, found.refused)
        _log.log(logging.INFO if as_hoped else logging.WARNING, "%s", line)
        self._link.refuse(list(found.damaged))
        self._record(
            Resumed(
                at=now,
                checkpoint=name,
                step=self.step,
                level=exact.level.label,
                lowered_by=exact.lowered_by,
                refused=found.refused,
                restore_s=time.monotonic() - began,
            )
        )
        return name

    def _check(self, checkpoint: Checkpoint, documents: Mapping[str, Any]) -> None:
        """Refuse a config that changed without being allowed by name. Raises: ConfigChanged."""
        stored = encoding.unpack(documents["progress"])["config"]
        changed = config_changes.differences(stored, self._config)
        refused = [entry for entry in changed if not config_changes.is_allowed(entry[0], self._settings.allow)]
        if refused:
            raise ConfigChanged(str(checkpoint.id), refused)

    def _exactness(self, checkpoint: Checkpoint, stored_config: Mapping[str, Any]) -> Exactness:
        about = checkpoint.manifest.step
        saved = {group: about[group] for group in ("versions", "flags")}
        changed = [key for key, _, _ in config_changes.differences(stored_config, self._config)]
        data = (Level.from_label(about["data"]["level"]), about["data"]["why"])
        return exactness.judge(saved, self._circumstances(), data, changed)

    def _circumstances(self) -> dict[str, Any]:
        version = importlib.metadata.version("holdfast")
        return {"versions": environment.versions(version), "flags": environment.flags(self._state.compiled)}

    def _leave_batch(self) -> None:
        """Decide about a batch that a loop was left in: a `break` may stand before the training on it, or behind."""
        if not self._in_batch:
            return
        steps = self._state.steps
        trained = steps is None or steps != self._steps_before or (self.accumulating and self._state.has_gradients())
        if not trained and self._feed is not None and self._feed.give_back():
            self._in_batch = False
        else:
            self._complete_batch()

    def _complete_batch(self) -> None:
        """Close the batch in hand: an optimizer step, or one more micro-batch of it."""
        accumulating = self.accumulating
        self._in_batch = False
        before = self._position
        if not accumulating:
            self._pass(dataclasses.replace(before, step=before.step + 1, micro=0))
        else:
            self._position = dataclasses.replace(before, micro=before.micro + 1)
            if self._settings.save_mid_accumulation:
                self._pass(self._position)

    def _pass(self, position: Position) -> None:
        """Stand at a boundary: hear the keeper, decide, stage."""
        if self._feed is not None:
            position = dataclasses.replace(position, epoch=self._feed.epoch, samples=self._feed.samples)
        self._position = position
        self._ran = True
        _loudly(self._decide)

    def _decide(self) -> None:
        self._boundary.hear(_log.warning)
        decision = self._boundary.decide(self._cadence, self._position, self._asked)
        if decision.save:
            self._stage(decision.reason)
        else:
            self._boundary.warm()

    def _stage(self, reason: str) -> None:
        position = self._position
        self._state.with_gradients = position.micro > 0
        feeds = self._state.feeds
        data = min(((feed.level, feed.why) for feed in feeds), default=(Level.FULL_STATE, "no loader is known"))
        about = {
            **self._about,
            **dataclasses.asdict(position),
            "reason": reason,
            "keep": dataclasses.asdict(self._settings.keep),
            "data": {"level": data[0].label, "why": data[1]},
            "flags": environment.flags(self._state.compiled),
            "taken_at": time.time(),
        }
        progress = {"position": dataclasses.asdict(position), "config": self._config}
        try:
            if self._boundary.save(position, about, progress, self._config_yaml):
                self._asked = None
        except StoreError as error:
            _log.warning("SAVE FAILED at step %d: %s. Training goes on; the next save tries again.", self.step, error)

    def _finish(self) -> None:
        self._leave_batch()
        if self._feed is not None:
            self._position = dataclasses.replace(self._position, epoch=self._feed.epoch, samples=self._feed.samples)
        changed = self._ran or self._asked is not None  # code behind the last boundary may have changed anything
        for _ in range(_FINAL_TRIES):
            if changed or not self._boundary.is_saved(self._position):
                changed = False
                self._boundary.wait_for_slots(self._settings.finish_s, _log.warning)
                self._stage("the end of training")
            self._boundary.wait_for_slots(self._settings.finish_s, _log.warning, every=True)
            if self._boundary.is_saved(self._position):
                return self._close("finished", "")
        why = f"the final state (step {self.step}) is not saved: {self._boundary.failure}"
        self._close("stopped", why)
        raise StoreUnusable(self._store.url, why)

    def _close(self, ending: Ending, detail: str) -> None:
        self._boundary.finish(ending, self.step, detail, self._settings.finish_s, _log.warning)

    def _record(self, event: Event) -> None:
        self._link.record(event)


def _check_counts(*, epochs: int | None, steps: int | None, accumulate: int) -> None:
    for name, value, least in (("epochs", epochs, 0), ("steps", steps, 0), ("accumulate", accumulate, 1)):
        if value is not None and (not isinstance(value, int) or value < least):
            raise UsageError(f"{name}={value!r}: use a whole number from {least} on")


def _loudly(action: Callable[[], _T]) -> _T:
    """Do something; a Stop is printed before it goes on, because a SystemExit prints nothing by itself."""
    try:
        return action()
    except Stop as error:
        if not getattr(error, "printed", False):
            print(f"holdfast: {error}", file=sys.stderr, flush=True)
            error.printed = True  # type: ignore[attr-defined]
        raise


def _speak_up() -> None:
    """Where the script has not set up logging, what Holdfast has to say goes to standard error."""
    if not _log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("holdfast: %(message)s"))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)


def _resume_line(attempt: int, name: str, step: int, exact: Exactness, refused: tuple[tuple[str, str], ...]) -> str:
    line = f"attempt {attempt} resumed from {name} (step {step}): {exact.level.label}"
    if exact.lowered_by:
        line += f", because {'; '.join(exact.lowered_by)}"
    if refused:
        line += f". Refused: {'; '.join(f'{newer} ({why})' for newer, why in refused)}"
    return line
