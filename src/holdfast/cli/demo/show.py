"""What people see while the demo runs: a bar per training, and a line for every kill as it happens."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from .kills import Kill, Strike


class Bars:
    """Progress of both trainings; use it as a context manager."""

    def __init__(self, console: Console, steps: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._steps = steps
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, name: str) -> "Bar":
        """Begin the bar of one training."""
        task = self._progress.add_task(name, total=self._steps, loss=float("nan"))
        return Bar(self._progress, task)


class Bar:
    """The `Show` of one training."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def made(self, step: int, loss: float) -> None:
        """Move the bar, back too: replayed steps are seen."""
        self._progress.update(self._task, completed=step, loss=loss)

    def struck(self, strike: Strike) -> None:
        """Say who was killed, and where."""
        self._progress.console.print(
            f"[red]✗ kill {strike.number}[/]: SIGKILL to the {strike.killed} at step {strike.reached}, {strike.where}",
            soft_wrap=True,
        )

    def back(self, kill: Kill) -> None:
        """Say how training came back."""
        if kill.strike.kind == "keeper":
            how = "training went on without a restart; it has another keeper"
        else:
            how = f"resumed from {kill.checkpoint or 'nothing: afresh'}, {kill.replayed} steps replayed, {kill.level}"
        self._progress.console.print(f"[green]✓ back after {kill.back_s:.1f} s[/]: {how}", soft_wrap=True)
