"""The keeper starts wherever its trainer does, whatever the surroundings are like."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .kills import Sight

pytestmark = pytest.mark.slow

SCRIPT = """
import holdfast
with holdfast.Run({store!r}, state={{"notes": {{"a": 1}}}}) as run:
    run.boundary()
"""


def train(tmp_path: Path, cwd: Path, shell: str = '"$0" "$1"') -> Path:
    """Run a small script through a shell in a folder; return its store."""
    store, script = tmp_path / "a run, größer", tmp_path / "train.py"
    script.write_text(SCRIPT.format(store=str(store)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run(["sh", "-c", shell, sys.executable, str(script)], cwd=cwd, env=environment, timeout=120, check=True)
    return store


def test_standard_streams_may_be_closed(tmp_path: Path) -> None:
    """Under some daemons and supervisors they are; the socket to the keeper must not take their place."""
    store = train(tmp_path, tmp_path, '"$0" "$1" <&- >&- 2>&-')
    assert [c.step for c in Sight(store).committed()] == [1]
    assert list((store / "attempts").glob("*.keeper-*")) == [store / "attempts" / "000001.keeper-01.json"]


def test_modules_in_the_current_folder_do_not_matter(tmp_path: Path) -> None:
    """A queue.py where the script happens to be started is nothing to the keeper."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "queue.py").write_text("raise SystemExit('not the queue you wanted')\n")
    store = train(tmp_path, folder)
    assert [c.step for c in Sight(store).committed()] == [1]
