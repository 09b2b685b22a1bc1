"""The end of the demo: the table of kills, the verdict, and the same facts as data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from .compare import Comparison
from .course import Course
from .kills import Kill


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the demo found."""

    steps: int
    seed: int
    """Decides where the kills fall."""
    undisturbed: Course
    interrupted: Course
    comparison: Comparison
    picture: Path

    def facts(self) -> dict[str, Any]:
        """Plain data for --json."""
        return {
            "identical": self.comparison.identical,
            "verdict": self.comparison.verdict,
            "steps": self.steps,
            "seed": self.seed,
            "losses_compared": self.comparison.losses,
            "tensors_compared": self.comparison.tensors,
            "tensor_bytes_compared": self.comparison.tensor_bytes,
            "differences": list(self.comparison.differences),
            "kills": [_kill(kill) for kill in self.interrupted.kills],
            "launches": self.interrupted.launches,
            "undisturbed_s": round(self.undisturbed.seconds, 2),
            "interrupted_s": round(self.interrupted.seconds, 2),
            "undisturbed": str(self.undisturbed.store),
            "interrupted": str(self.interrupted.store),
            "log": str(self.interrupted.log),
            "picture": str(self.picture),
        }

    def tell(self, console: Console) -> None:
        """Print the table and the verdict."""
        console.print()
        console.print(self._table())
        console.print(
            f"Undisturbed {self.undisturbed.seconds:.0f} s; killed and restarted {self.interrupted.seconds:.0f} s, in "
            f"{self.interrupted.launches} launches of one command."
        )
        console.print(f"The picture: [bold]{self.picture}[/]", soft_wrap=True)
        console.print(f"Look around: holdfast ls {self.interrupted.store}", soft_wrap=True)
        color = "green" if self.comparison.identical else "red"
        console.print(f"[bold {color}]{self.comparison.verdict}.[/]")

    def _table(self) -> Table:
        title = f"{len(self.interrupted.kills)} kills in {self.steps} steps"
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, title=title)
        for name in ("kill", "killed", "step", "where", "resumed", "replayed", "back", "exactness"):
            right = name in ("kill", "step", "replayed", "back")
            table.add_column(name, justify="right" if right else "left", no_wrap=True)
        for kill in self.interrupted.kills:
            strike = kill.strike
            went_on = strike.kind == "keeper"
            table.add_row(
                str(strike.number),
                "both" if strike.killed == "trainer and keeper" else strike.killed,
                str(strike.reached),
                strike.where.replace("the save of step", "save"),
                "went on" if went_on else f"step {kill.resumed_step}" if kill.checkpoint else "afresh",
                str(kill.replayed),
                f"{kill.back_s:.1f} s",
                "bit-exact" if went_on else _exactness(kill),
            )
        table.caption = "both: trainer and keeper"
        return table


def _exactness(kill: Kill) -> str:
    lowered = f" ({'; '.join(kill.lowered_by)})" if kill.lowered_by else ""
    return f"{kill.level or 'from the beginning'}{lowered}"


def _kill(kill: Kill) -> dict[str, Any]:
    strike = kill.strike
    return {
        "number": strike.number,
        "killed": strike.killed,
        "attempt": strike.attempt,
        "step": strike.reached,
        "where": strike.where,
        "inside_save_of_step": strike.save,
        "resumed_from": kill.checkpoint,
        "resumed_step": kill.resumed_step,
        "replayed_steps": kill.replayed,
        "back_s": round(kill.back_s, 2),
        "exactness": kill.level,
        "lowered_by": list(kill.lowered_by),
    }
