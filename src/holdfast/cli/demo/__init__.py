"""The demonstration: train a small GPT on real text, kill it in several ways, prove the resume bit-exact."""

import json
import random
import secrets
import shutil
from pathlib import Path

from rich.console import Console

from ...errors import UsageError
from .compare import compare, read_final
from .course import Course, Driver, Task
from .evidence import Evidence
from .kills import Target, plan
from .picture import Curves, draw
from .report import Report
from .show import Bars
from .train import SAVE_EVERY_STEPS

_MARK = ".holdfast-demo"
"""A folder with this file in it was made by a demo, and may be replaced by the next."""
_SUBJECT = "A small GPT learns Python from the standard library, {steps} steps"


def demo(
    folder: Path, *, steps: int = 300, kills: int = 5, seed: int | None = None, as_json: bool, console: Console
) -> int:
    """Train undisturbed, train under kills, compare, tell; return 0 only when all is bit-identical.

    Args:
        folder: where both stores, the log and the picture go; replaced when an earlier demo made it.
        seed: decides where the kills fall; chosen and told when None.

    Raises: UsageError for a folder that holds something else, or steps and kills that do not fit; HoldfastError when a
    training fails.
    """
    seed = secrets.randbits(32) if seed is None else seed
    chance = random.Random(seed)
    targets = plan(steps, kills, SAVE_EVERY_STEPS, chance)
    _make_room(folder)
    with Bars(console, steps) as bars:
        undisturbed = _train(folder, "undisturbed", steps, [], bars, chance)
        interrupted = _train(folder, "interrupted", steps, targets, bars, chance)
    one = read_final(undisturbed.store, Evidence(undisturbed.store).newest())
    other = read_final(interrupted.store, Evidence(interrupted.store).newest())
    comparison = compare(one, other, steps)
    picture = folder / "demo.png"
    draw(
        Curves(
            undisturbed=one.losses,
            interrupted=other.losses,
            kills=interrupted.kills,
            identical=comparison.identical,
            verdict=comparison.verdict,
            subject=_SUBJECT.format(steps=steps),
        ),
        picture,
    )
    report = Report(
        steps=steps,
        seed=seed,
        undisturbed=undisturbed,
        interrupted=interrupted,
        comparison=comparison,
        picture=picture,
    )
    if as_json:
        print(json.dumps(report.facts(), indent=2))
    else:
        report.tell(console)
    return 0 if comparison.identical else 1


def _train(folder: Path, name: str, steps: int, targets: list[Target], bars: Bars, chance: random.Random) -> Course:
    task = Task(store=folder / name, log=folder / f"{name}.log", steps=steps, every_steps=SAVE_EVERY_STEPS)
    return Driver(task, bars.show(name), chance).run(targets)


def _make_room(folder: Path) -> None:
    """Empty a folder that an earlier demo made; make a new one. Raises: UsageError for anything else."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a folder for the demo")
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARK).exists():
            raise UsageError(f"{folder} holds something that no demo made; give an empty or a new folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).write_text("made by holdfast demo; replaced by the next one\n")
