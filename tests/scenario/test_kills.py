"""A training that is killed at random instants and inside saves ends as if nothing had happened.

A short round of what `make torture` does with hundreds of kills; see `torture` for what each attempt is held against.
"""

from pathlib import Path

import pytest

from .torture import Torture
from .zygote import Zygote

pytestmark = pytest.mark.slow


def test_every_restart_goes_on_exactly_whatever_was_killed_and_when(zygote: Zygote, tmp_path: Path) -> None:
    """24 kills: no wrong loss, nothing skipped, nothing half-written, nobody left, the same weights to the last bit."""
    summary = Torture(zygote, tmp_path, seed=1).run(kills=24)
    assert summary.wrong == []
    assert sum(summary.kills.values()) >= 24
    assert summary.resumes > 0
