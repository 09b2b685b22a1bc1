"""Size, names and manners of the source.

A check yields (place, what is wrong there); its docstring is the sentence that a person who broke it reads.
"""

import ast
import builtins
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import pytest

from .source import Function, Source, hold, last_name, sources

Complaint: TypeAlias = tuple[str, str]
Check: TypeAlias = Callable[[Source], Iterator[Complaint]]

MAX_FILE_LINES = 399
MAX_FUNCTION_LINES = 59
MAX_PARAMETERS = 6
VAGUE = {"base", "common", "core", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}


def long_files(source: Source) -> Iterator[Complaint]:
    """Files stay under 400 lines. Split this one by noun: find the second thing that it is about."""
    lines = len(source.text.splitlines())
    if lines > MAX_FILE_LINES:
        yield source.path, f"{lines} lines"


def long_functions(source: Source) -> Iterator[Complaint]:
    """Functions stay under 60 lines. Name the steps of this one, as functions of their own."""
    for place, function in source.functions:
        lines = (function.end_lineno or 0) - function.lineno + 1
        if lines > MAX_FUNCTION_LINES:
            yield source.where(place), f"{lines} lines"


def many_parameters(source: Source) -> Iterator[Complaint]:
    """Functions take at most 6 parameters. Put those that travel together into a frozen dataclass with a name."""
    # `**options` are not counted here: open_options wants a reason for every one of them.
    for place, function in source.functions:
        arguments = function.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg]
        count = sum(argument is not None for argument in every) - _bound(function, place.owner)
        if count > MAX_PARAMETERS:
            yield source.where(place), f"{count} parameters"


def open_options(source: Source) -> Iterator[Complaint]:
    """No `**kwargs`: spell the options out. A pass-through that must be one goes to ALLOWED, with its reason."""
    for place in source.places:
        if isinstance(place.node, Function | ast.Lambda) and place.node.args.kwarg is not None:
            yield source.where(place), f"**{place.node.args.kwarg.arg}"


def broad_excepts(source: Source) -> Iterator[Complaint]:
    """Name the errors that are meant, or end the handler with `raise`: a broad one hides bugs."""
    for place in source.places:
        if isinstance(place.node, ast.ExceptHandler):
            kinds = _broad(place.node.type)
            if kinds and not isinstance(place.node.body[-1], ast.Raise):
                yield source.where(place), f"except {kinds}"
    for place, call in source.calls:
        if last_name(call) == "suppress":
            yield from ((source.where(place), f"suppress({_broad(kind)})") for kind in call.args if _broad(kind))


def prints(source: Source) -> Iterator[Complaint]:
    """Only the command line prints. Return a value, record an event, or log."""
    if not source.path.startswith("cli/"):
        for place, call in source.calls:
            if isinstance(call.func, ast.Name) and call.func.id in ("print", "pprint"):
                yield source.where(place), call.func.id


def vague_modules(source: Source) -> Iterator[Complaint]:
    """Call a module by the thing that it holds; a name that says nothing collects everything."""
    words = set(re.split(r"[/_]", source.path.removesuffix(".py")))
    yield from ((source.path, f'"{word}"') for word in sorted(words & VAGUE))


def unfinished(source: Source) -> Iterator[Complaint]:
    """Finish it, or write an issue: source holds no reminders."""
    yield from ((source.path, f"line {n}: {word}") for n, word in _reminders(source.text))


def foreign_errors(source: Source) -> Iterator[Complaint]:
    """Raise a class of holdfast.errors (UsageError for an argument): its reader is told what to do.

    Where a protocol of Python asks for one of its own errors, the place goes to ALLOWED, with its reason.
    """
    for place in source.places:
        if isinstance(place.node, ast.Raise) and place.node.exc is not None:
            name = last_name(place.node.exc)
            kind = getattr(builtins, name, None)
            if isinstance(kind, type) and issubclass(kind, BaseException):
                yield source.where(place), f"raise {name}"


def changed_globals(source: Source) -> Iterator[Complaint]:
    """No module changes its globals: hand the value on as an argument, or keep it in an object that somebody owns."""
    for place in source.places:
        if isinstance(place.node, ast.Global):
            yield source.where(place), f"global {', '.join(place.node.names)}"


def undocumented(source: Source) -> Iterator[Complaint]:
    """Everything public has a docstring: one imperative sentence that says more than the name."""
    if not ast.get_docstring(source.tree):
        yield source.path, "the module"
    for place in source.places:
        if isinstance(place.node, ast.ClassDef | Function) and not isinstance(place.owner, Function):
            public = not any(part.startswith("_") for part in place.name.split("."))
            if public and not ast.get_docstring(place.node):
                yield source.where(place), "no docstring"


ALLOWED: Mapping[Check, Mapping[str, str]] = {
    open_options: {
        "state/loader.py:DataLoader.__init__": "torch's options are torch's, and it adds new ones",
        "run.py:Run.report": "metrics, by name",
    },
    broad_excepts: {
        "testing/contracts.py:_side_by_side.run": "carried over to the test's own thread, and raised there",
    },
    prints: {
        "run.py:_loudly": "a Stop is a SystemExit, which says nothing by itself",
    },
    foreign_errors: {
        "__init__.py:__getattr__": "AttributeError is what hasattr and import wait for",
        "cli/demo/compare.py:_read": "translated in the same file, with the other ways to be damaged",
        "engine/keep.py:Keeper._listen": "ends a process that nobody's code runs in; the trainer reads its last words",
        "keeper.py:_first": "ends a process that nobody's code runs in; the trainer reads its last words",
        "spec/encoding.py:unpack": "about an argument; whoever knows whose value it is translates it",
        "spec/leaves.py:leaf_from_json": "about an argument; whoever knows the manifest's name translates it",
        "spec/manifest.py:RankManifest.from_bytes": "translated to Corrupt a few lines below",
        "spec/manifest.py:Manifest.from_bytes": "translated to Corrupt a few lines below",
        "spec/manifest.py:_leaf_from_json": "about an argument; from_bytes translates it to Corrupt",
        "storage/disk.py:PosixDisk.size": "a disk speaks as the operating system does",
        "storage/local.py:LocalStore._rename_if_free": "speaks as the disk does; translated like its errors",
        "testing/contracts.py:StoreContract.store": "what a suite must be given; Python's own word for it",
        "testing/contracts.py:_raised": "an assertion of the suite",
        "testing/disk.py:LossyDisk._opened": "a disk speaks as the operating system does",
    },
}
"""Places that may do what a check forbids, and why."""

PLANTED: Mapping[Check, tuple[tuple[str, str], ...]] = {
    long_files: (("a.py", "x = 1\n" * 400),),
    long_functions: (("a.py", "def f():\n" + "    x = 1\n" * 59),),
    many_parameters: (
        ("a.py", "def f(a, b, /, c, d, *, e, f, g): ..."),
        ("a.py", "class A:\n    def f(self, a, b, c, d, e, f, *g): ..."),
        ("a.py", "class A:\n    @staticmethod\n    def f(a, b, c, d, e, f, g): ..."),
    ),
    open_options: (("a.py", "def f(**options): ..."), ("a.py", "f = lambda **options: 1")),
    broad_excepts: (
        ("a.py", "try:\n    f()\nexcept:\n    pass"),
        ("a.py", "try:\n    f()\nexcept Exception as error:\n    log(error)"),
        ("a.py", "try:\n    f()\nexcept (OSError, builtins.BaseException):\n    if x:\n        raise\n    y"),
        ("a.py", "with suppress(Exception):\n    f()"),
    ),
    prints: (("a.py", "print(1)"),),
    vague_modules: (("utils.py", ""), ("state/helpers/a.py", ""), ("state/load_base.py", "")),
    unfinished: (("a.py", "# TO" + "DO: later"), ("a.py", '"""FIX' + 'ME"""')),
    foreign_errors: (
        ("a.py", "raise RuntimeError"),
        ("a.py", "raise Exception('no') from error"),
        ("a.py", "def f(a):\n    raise ValueError(a)"),
    ),
    changed_globals: (("a.py", "def f():\n    global x\n    x = 1"),),
    undocumented: (
        ("a.py", ""),
        ("a.py", '"""A."""\ndef f(): ...'),
        ("a.py", '"""A."""\nclass A:\n    """A."""\n    def f(self): ...'),
    ),
}
"""Per check: files that it must complain about."""

INNOCENT = '''"""A module."""

class A:
    """A class."""

    def f(self, a, b, c, d, e, f):
        """Do it."""
        def nested(): ...
        try:
            self.printer(a)
        except BaseException:
            self.undo()
            raise
        except (OSError, ValueError) as error:
            raise Corrupt(a, b) from error
        with suppress(OSError):
            raise error

    def _private(self): ...
'''
"""What every check must let pass."""


@pytest.mark.parametrize("check", PLANTED, ids=lambda check: check.__name__)
def test_the_source_keeps(check: Check) -> None:
    """No file of the package breaks the check, but for the places that are listed with a reason."""
    allowed = ALLOWED.get(check, {})
    found = [(where, what) for source in sources() for where, what in check(source)]
    hold((f"{where}: {what}" for where, what in found if where not in allowed), check.__doc__ or "")
    stale = allowed.keys() - {where for where, _ in found}
    hold(sorted(stale), f"These are allowed in ALLOWED[{check.__name__}] and need it no more; take them out:")


@pytest.mark.parametrize(
    ("check", "path", "text"),
    [(check, path, text) for check, planted in PLANTED.items() for path, text in planted],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_fault_is_seen(check: Check, path: str, text: str) -> None:
    """Each check complains about files that break it, once, with a sentence for whoever did it."""
    assert len(list(check(Source(path, text)))) == 1
    assert check.__doc__


@pytest.mark.parametrize("check", PLANTED, ids=lambda check: check.__name__)
def test_what_is_fine_passes(check: Check) -> None:
    """No check complains about a handler that re-raises, six parameters besides self, or a private name."""
    assert list(check(Source("state/fine.py", INNOCENT))) == []


def _bound(function: Function, owner: ast.AST) -> int:
    """1 for a method that is given its object or class, else 0."""
    static = any(last_name(decorator) == "staticmethod" for decorator in function.decorator_list)
    return int(isinstance(owner, ast.ClassDef) and not static)


def _broad(kind: ast.expr | None) -> str:
    """What is broad about the type of a handler; nothing if it is fine."""
    if kind is None:
        return "everything"
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return ", ".join(name for name in map(last_name, kinds) if name in ("Exception", "BaseException"))


def _reminders(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        yield from ((number, word) for word in re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", line))
