"""The circumstances that decide whether the same code computes the same numbers."""

import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .rng import accelerators

_GIT_DEADLINE_S = 2.0


def versions(holdfast: str) -> dict[str, str | None]:
    """Versions that are stored with each checkpoint, compared on resume, and told."""
    return {
        "holdfast": holdfast,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "cuda": torch.version.cuda,
    }


def flags(compiled: Mapping[str, bool]) -> dict[str, Any]:
    """Settings and hardware that change results; `compiled` tells which parts go through torch.compile.

    The number of threads counts: it changes the order in which sums are taken.
    """
    return {
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "accelerators": accelerators(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "default_dtype": str(torch.get_default_dtype()),
        "compiled": sorted(part for part, yes in compiled.items() if yes),
    }


def code_revision() -> str | None:
    """Return the git commit of the script that runs, with `+changes` when the work tree differs; None if unknown."""
    script = Path(sys.argv[0]).resolve() if sys.argv and sys.argv[0] else Path.cwd()
    folder = script if script.is_dir() else script.parent
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return commit + ("+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]  # `status` must not lock out the user's git
    done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_DEADLINE_S, check=True)
    return done.stdout.strip()
