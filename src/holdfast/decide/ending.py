"""How an attempt ended, told from the exception that ended it."""

from ..errors import Stop, Superseded
from ..spec.attempts import Ending


def judge(error: BaseException) -> tuple[Ending, str]:
    """Name the ending, and say what there is to say about it."""
    if isinstance(error, Superseded):
        return "superseded", str(error)
    if isinstance(error, Stop):
        return "stopped", str(error)
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return "exited", repr(error)
    return "crashed", f"{type(error).__name__}: {error}"
