"""Every exception of Holdfast, grouped by what the reader can do about it.

::

    HoldfastError
    ├── UsageError (ValueError)       fix the call                                  exit 2
    ├── Stop (SystemExit)             this training cannot go on; a person must act  exit 78
    │   ├── UnknownState              something in `state` cannot be stored
    │   ├── StateMismatch             checkpoint and run disagree on parts or tensors
    │   ├── ConfigChanged             the stored config differs
    │   ├── NewerFormat               written by a newer Holdfast
    │   ├── NotAStore                 the place holds something else
    │   ├── StoreUnusable             the place cannot be read or written
    │   ├── NoneUsable                checkpoints exist, none verifies
    │   ├── RunHeld                   another live process trains this run
    │   ├── Superseded                a newer attempt owns this run
    │   └── KeeperFailed              the background process keeps dying
    ├── CheckpointError               try another checkpoint                        exit 11
    │   ├── Corrupt                   a byte is not what was committed
    │   ├── Incomplete                a file of it is missing
    │   └── NoSuchCheckpoint          nothing of that name is committed
    └── StoreError                    look at the storage                           exit 10
        ├── NotFound
        ├── AlreadyExists
        ├── NoSpace
        ├── AccessDenied
        └── Unavailable

A `Stop` is a `SystemExit` with code 78 ("do not run me again"): uncaught, it ends the process without a traceback;
`Run` has printed its message by then.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

EXIT_RESUME_ME = 75
"""Exit code of a process that was interrupted and wants to be started again (EX_TEMPFAIL of sysexits.h)."""

EXIT_DO_NOT_RETRY = 78
"""Exit code of a process that must not be started again before a person acted (EX_CONFIG of sysexits.h)."""


class HoldfastError(Exception):
    """Catch this to catch everything that Holdfast raises on purpose."""

    exit_code: ClassVar[int] = 1


class UsageError(HoldfastError, ValueError):
    """An argument makes no sense: the message names it and says what would."""

    exit_code = 2


class Stop(HoldfastError, SystemExit):
    """This training cannot go on until a person has acted. Uncaught, the process ends with code 78, no traceback."""

    exit_code = EXIT_DO_NOT_RETRY

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = EXIT_DO_NOT_RETRY

    def __str__(self) -> str:
        return self.message


class UnknownState(Stop):
    """Something in `state` is neither tensor, array, plain data nor an object with state_dict/load_state_dict."""

    def __init__(self, path: str, kind: str, remedy: str) -> None:
        self.path = path
        super().__init__(f"{path} is a {kind}, which cannot be stored; {remedy}")


class StateMismatch(Stop):
    """The checkpoint and the run disagree on parts or tensors; every disagreement is listed."""

    def __init__(self, checkpoint: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            f"checkpoint {checkpoint} does not fit this run's state:\n"
            + _bullets(problems)
            + "\nBuild the same model and optimizer as the run that saved it, or start a new run at another path."
        )


class ConfigChanged(Stop):
    """The config given to Run differs from the one stored with the checkpoint."""

    def __init__(self, checkpoint: str, differences: Sequence[tuple[str, str, str]]) -> None:
        self.differences = tuple(differences)
        keys = [key for key, _, _ in differences]
        super().__init__(
            f"the config differs from the one that checkpoint {checkpoint} was trained with:\n"
            + _bullets(f"{key}: {old} -> {new}" for key, old, new in differences)
            + f"\nGo back to the old values, or allow the change by name: Settings(allow={keys!r})."
        )


class NewerFormat(Stop):
    """Written by a newer Holdfast than this one."""

    def __init__(self, what: str, found: int, known: int) -> None:
        super().__init__(
            f"{what} has format {found}; this Holdfast reads formats up to {known}. Upgrade Holdfast, or, to go on "
            'from an older checkpoint that it can read, allow it by name: Settings(allow=["format"]).'
        )


class NotAStore(Stop):
    """The place given as a run's store holds something else."""

    def __init__(self, url: str, found: Iterable[str]) -> None:
        names = sorted(found)[:5]
        super().__init__(
            f"{url} is not a Holdfast run, and is not empty (it holds {', '.join(names)}). "
            "Give the path of a run, or of an empty or new folder."
        )


class StoreUnusable(Stop):
    """The store cannot be read or written at all, already when training starts."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"{url} cannot be used: {why}. Give a path that this user can write to.")


class NoneUsable(Stop):
    """Checkpoints exist, and none of them verifies. Never answered by a fresh start."""

    def __init__(self, url: str, refusals: Sequence[tuple[str, str]]) -> None:
        self.refusals = tuple(refusals)
        super().__init__(
            f"{url} holds {len(refusals)} checkpoint(s) and none is usable:\n"
            + _bullets(f"{name}: {why}" for name, why in refusals)
            + "\nRestore the damaged files from a copy, or start a new run at another path. "
            + "No checkpoint was changed or deleted."
        )


class RunHeld(Stop):
    """Another live process trains this run."""

    def __init__(self, url: str, holder: str) -> None:
        self.holder = holder
        super().__init__(f"{url} is being trained already, by {holder}. Stop that process first, or use another path.")


class Superseded(Stop):
    """A newer attempt has claimed the run; this one must not write any more."""

    def __init__(self, attempt: int, newer: int) -> None:
        super().__init__(
            f"attempt {newer} has taken over this run; attempt {attempt} stopped writing. "
            "Its checkpoints up to that moment are kept."
        )


class KeeperFailed(Stop):
    """The keeper process died again and again, or did not finish in time."""


class CheckpointError(HoldfastError):
    """This checkpoint cannot be used; another one may."""

    exit_code = 11


class Corrupt(CheckpointError):
    """What is stored is not what was committed."""

    def __init__(self, name: str, what: str) -> None:
        self.name = name
        super().__init__(f"{name}: {what}")


class Incomplete(CheckpointError):
    """An object that the manifest names is missing."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{name} is missing")


class NoSuchCheckpoint(CheckpointError):
    """No committed checkpoint has that name or step."""

    def __init__(self, wanted: str, have: Sequence[str]) -> None:
        listed = ", ".join(have[-5:]) if have else "none"
        super().__init__(f"no checkpoint {wanted!r}; the newest ones are: {listed}")


class StoreError(HoldfastError):
    """The storage did not do what was asked. `name` is the object, `retryable` whether trying again may help."""

    exit_code = 10
    retryable: ClassVar[bool] = False

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        super().__init__(f"{name}: {why}")


class NotFound(StoreError):
    """No object has that name."""


class AlreadyExists(StoreError):
    """An object of that name exists; objects are written once."""


class NoSpace(StoreError):
    """The storage is full, or a quota is used up."""

    retryable = True


class AccessDenied(StoreError):
    """The storage refuses this user."""


class Unavailable(StoreError):
    """The storage failed in a way that may pass."""

    retryable = True


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"  - {line}" for line in lines)
