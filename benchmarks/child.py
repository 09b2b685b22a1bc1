"""One measurement in a process of its own: `python -m benchmarks.child JOB RESULT`, both JSON."""

import json
import logging
import shutil
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from . import holdfast_runs, limits, proofs, saving, state, training
from .peers import maker
from .targets import HOLDFAST, REFERENCE

THREADS = 2
_TAKES_ANY = (HOLDFAST, REFERENCE)
"""Contestants that load into an optimizer without moments, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to measure. `kind` says what is measured, `contestant` on whom."""

    kind: str
    contestant: str
    size_mib: int
    folder: str
    """Empty, on the disk that is measured."""
    cold: str
    """How files are put out of the page cache, see machine.way_to_cold."""
    steps: int = 0
    pace: float = 0.0
    """Saves per training step."""

    def to_json(self) -> str:
        """Write it for the command line."""
        return json.dumps(asdict(self))


def run(job: Job) -> dict[str, Any]:
    """Do the job and return what was measured, by name."""
    folder = Path(job.folder)
    trained = state.adapted(job.size_mib) if job.kind == "frozen" else state.gpt(job.size_mib)
    if job.kind == "limits":
        return dict(limits.measure(trained, folder, job.cold))
    if job.kind == "frozen":
        return dict(holdfast_runs.frozen(trained, folder))
    if job.kind == "startup":
        return dict(holdfast_runs.startup(trained, folder))
    make = maker(job.contestant) if job.contestant else None
    if make and job.kind == "save":
        values = saving.measure(lambda: make(trained, folder), trained, job.cold, fresh=job.contestant in _TAKES_ANY)
        return {"state_bytes": float(trained.nbytes), **values}
    contestant = make(trained, folder) if make else None
    if job.kind == "train":
        return dict(training.train(trained, training.saver_for(contestant, job.pace), job.steps))
    assert contestant is not None
    if job.kind == "once":
        return dict(proofs.save_once(contestant, trained))
    return dict(proofs.load_damaged(contestant, trained))


def main() -> None:
    """Run one job; its folder's content is removed, whatever happens."""
    job = Job(**json.loads(sys.argv[1]))
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(THREADS)
    try:
        values = run(job)
    finally:
        shutil.rmtree(job.folder, ignore_errors=True)
    Path(sys.argv[2]).write_text(json.dumps(values))


if __name__ == "__main__":
    main()
