"""The training process, seen from outside: started by its command, followed through its log, killed.

Rule 9: every wait has a deadline and says who is missing.
    (tests/unit/test_demo_trainer.py)
"""

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ...errors import HoldfastError

_LINE = re.compile(rb"^step (\d+) loss (\S+)$")
_LOOK_EVERY_S = 0.005
_TAIL_LINES = 25

Watch = Callable[[int, float], None]
"""Called with (step, loss) for every step that the trainer says it has made."""


class Trainer:
    """One launch of the training script. Its output goes to the end of a log file."""

    def __init__(
        self, command: Sequence[str], log: Path, watch: Watch, *, start_s: float = 120.0, step_s: float = 60.0
    ) -> None:
        """Launch `command`; allow `start_s` seconds until its first step and `step_s` for each later one."""
        self._log = log
        with log.open("ab") as out:
            out.write(f"\n$ {' '.join(command)}\n".encode())
            out.flush()
            self._read_from = out.tell()
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        self._watch = watch
        self._partial = b""
        self._step_s = step_s
        self._deadline = time.monotonic() + start_s
        self._allowed_s = start_s
        self.first_step: int | None = None
        """The first step of this launch; None until it was made."""
        self.step = 0
        """The newest step known to be made."""

    @property
    def pid(self) -> int:
        """Process id of the trainer."""
        return self._process.pid

    def look(self) -> bool:
        """Take in what the trainer has said; tell whether it still runs.

        Raises: HoldfastError when it failed, or has made no step for too long.
        """
        code = self._process.poll()
        self._read()
        if code is None and time.monotonic() > self._deadline:
            self.kill()
            raise self._failure(f"made no step after step {self.step} for {self._allowed_s:g} s")
        if code is not None and code != 0:
            raise self._failure(f"ended with {f'signal {-code}' if code < 0 else f'code {code}'}")
        return code is None

    def reach(self, step: int) -> None:
        """Wait until a step is made. Raises: HoldfastError when it never is."""
        while self.step < step:
            if not self.look() and self.step < step:
                raise self._failure(f"ended at step {self.step}, before step {step}")
            time.sleep(_LOOK_EVERY_S)

    def finish(self) -> None:
        """Wait for the proper end of the training. Raises: HoldfastError when it ends otherwise."""
        while self.look():
            time.sleep(_LOOK_EVERY_S)

    def kill(self) -> None:
        """End it with SIGKILL, if it still runs, and take in its last words."""
        self._process.kill()
        self._process.wait()
        self._read()

    def _read(self) -> None:
        with self._log.open("rb") as log:
            log.seek(self._read_from)
            fresh = log.read()
        self._read_from += len(fresh)
        *lines, self._partial = (self._partial + fresh).split(b"\n")
        for line in lines:
            match = _LINE.match(line)
            if match is not None:
                self._made(int(match.group(1)), float(match.group(2)))

    def _made(self, step: int, loss: float) -> None:
        if self.first_step is None:
            self.first_step = step
        self.step = step
        self._allowed_s = self._step_s
        self._deadline = time.monotonic() + self._step_s
        self._watch(step, loss)

    def _failure(self, what: str) -> HoldfastError:
        tail = self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return HoldfastError(
            f"the trainer (process {self.pid}) {what}; the end of its log, {self._log}:\n" + "\n".join(tail)
        )
