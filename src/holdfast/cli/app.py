"""The commands together, and how an error of Holdfast looks: one line on standard error, and its exit code."""

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from ..errors import HoldfastError
from . import demonstrate, diff, export, ls, retention, show, verify


class Commands(TyperGroup):
    """Turns errors that are meant for people into one line without a traceback. Anything else is a bug, and shows."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            print(f"holdfast: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Look at, check, export and tidy up what a training run has saved.

    RUN is the folder given to `holdfast.Run`, like runs/digits. CHECKPOINT is a checkpoint's name, like
    0000000120-a000001 (step 120 of attempt 1), or a step, like 120, or latest.

    Exit codes: 0 done, 2 a wrong argument, 10 the storage failed, 11 a checkpoint is damaged or not there,
    78 not a run.""",
)
app.command("ls")(ls.ls)
app.command("show")(show.show)
app.command("verify")(verify.verify)
app.command("diff")(diff.diff)
app.command("export")(export.export)
app.command("pin")(retention.pin)
app.command("unpin")(retention.unpin)
app.command("prune", cls=retention.CarriedOut)(retention.Prune)
app.command("demo")(demonstrate.demo)
