"""The command line, called as a shell would call it, in this process."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.cli.app import app


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def facts(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Claim so."""
        return True


def holdfast(*words: object, stderr: io.StringIO | None = None) -> Said:
    """Run one command line; a traceback of our own code comes out as the exception it is."""
    out, err = io.StringIO(), stderr or io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as environment:
        environment.setenv("COLUMNS", "160")  # otherwise as wide as the terminal that the tests happen to run in
        try:
            app([str(word) for word in words], prog_name="holdfast")
            code = 0
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 0
    return Said(code, out.getvalue(), err.getvalue())
