"""The keeper is killed, again and again; its trainer starts another one and no save is lost.

Rule 9: every wait has a deadline and says who is missing.
"""

import os
import signal
from pathlib import Path

import pytest

from holdfast import wiring
from holdfast.ledger.store import read
from holdfast.spec.events import KeeperLost

from .kills import Sight
from .torture import TRAIN, differences
from .zygote import Zygote, keepers_of

pytestmark = pytest.mark.slow

WORDS = ("--epochs", "14", "--every-steps", "20", "--keep", "1000", "--workers", "1")
SAVES, KILLS = 14 * 12 // 20, 4


def test_training_goes_on_and_every_save_is_made_when_keepers_are_killed(zygote: Zygote, tmp_path: Path) -> None:
    """Killed while idle and in the midst of writing: every cadence point is committed, and every bit is right."""
    wanted = zygote.run(TRAIN, tmp_path / "alone", *WORDS)
    store = Sight(tmp_path / "run")
    process = zygote.start(TRAIN, store.path, *WORDS, "--pace", "0.02")
    killed: list[int] = []

    def kill(number: int) -> bool:
        keepers = [pid for pid in keepers_of(process.pid) if pid not in killed]
        recorded = sum(1 for _ in store.path.glob("ledger/*/*.jsonl")) > number
        committed = len(store.committed()) > number
        if not keepers or not recorded or not committed or bool(store.unfinished()) != bool(number % 2):
            return False
        os.kill(keepers[0], signal.SIGKILL)
        killed.append(keepers[0])
        return True

    for number in range(KILLS):
        assert process.until(lambda number=number: kill(number))
    assert zygote.finish(process) == 0, process.said()
    assert process.lines() == wanted.lines()
    assert differences(Sight(tmp_path / "alone"), store) == []
    assert {checkpoint.step // 20 for checkpoint in store.committed()} == set(range(1, SAVES + 1))
    lost = [event for event in read(wiring.open_store(store.path)) if isinstance(event, KeeperLost)]
    assert [event.pid for event in lost] == killed
    assert [process.said().count(f"the keeper (process {pid}) was killed by signal 9") for pid in killed] == [1] * KILLS
