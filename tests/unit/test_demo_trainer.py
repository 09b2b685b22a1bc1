"""The demo's training process is followed through its log, and waited for with a deadline.

Rule 9: every wait has a deadline and says who is missing.
"""

import sys
from pathlib import Path

import pytest

from holdfast.cli.demo.trainer import Trainer
from holdfast.errors import HoldfastError


def launch(tmp_path: Path, script: str, *, start_s: float = 60.0, step_s: float = 60.0) -> Trainer:
    """Run a script in place of the training."""
    return Trainer([sys.executable, "-uc", script], tmp_path / "log", lambda *_: None, start_s=start_s, step_s=step_s)


def test_steps_are_read_from_the_log(tmp_path: Path) -> None:
    """Other lines do not matter."""
    trainer = launch(tmp_path, "print('step 3 loss 2.5'); print('hello'); print('step 4 loss nan')")
    trainer.finish()
    assert (trainer.first_step, trainer.step) == (3, 4)


def test_a_training_that_makes_no_step_is_ended_and_named(tmp_path: Path) -> None:
    """The error says which step it stands at and shows the end of its log."""
    trainer = launch(tmp_path, "import time; print('step 1 loss 2'); print('stuck'); time.sleep(60)", step_s=0.2)
    with pytest.raises(
        HoldfastError, match=rf"process {trainer.pid}\) made no step after step 1 for 0.2 s(.|\n)*stuck"
    ):
        trainer.reach(2)


def test_a_training_that_fails_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    """A traceback in the log is shown."""
    with pytest.raises(HoldfastError, match=r"ended with code 1(.|\n)*ZeroDivisionError"):
        launch(tmp_path, "1/0").finish()


def test_a_training_that_ends_early_is_an_error(tmp_path: Path) -> None:
    """Exit code 0 before the last step is no success."""
    with pytest.raises(HoldfastError, match="ended at step 1, before step 2"):
        launch(tmp_path, "print('step 1 loss 2')").reach(2)
