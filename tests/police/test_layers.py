"""Who may import whom, held by import-linter; and what an import costs, seen from outside."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from .source import PACKAGE, ROOT, hold

CONFIG = ROOT / "pyproject.toml"
LINTER = tomllib.loads(CONFIG.read_text())["tool"]["importlinter"]
DEADLINE_S = 60

LINT = """
import sys
from importlinter.cli import lint_imports
sys.exit(lint_imports(config_filename=sys.argv[1], no_cache=True, no_logo=True))
"""

FAULTS = {
    "engine/keep.py": "import holdfast.storage.local",
    "decide/interval.py": "import holdfast.engine.keep",
    "spec/leaves.py": "import torch, holdfast.spec.names",
    "spec/names.py": "import holdfast.spec.leaves",
    "storage/local.py": "import numpy",
    "toolbox.py": "",
}
"""Imports that the contracts forbid, by the module that makes them; and a module that has no layer."""

LIGHT = {
    "import holdfast": ("torch", "numpy", "typer", "rich", "yaml"),
    "import holdfast.keeper": ("torch", "numpy", "typer", "rich", "yaml"),
    "import holdfast.cli.app": ("torch", "numpy"),
    "import holdfast.cli; sys.argv = ['holdfast', 'ls', '--help']; holdfast.cli.main()": ("torch", "numpy"),
}
"""Code, and what must not be loaded after it."""


def lint(folder: Path, config: Path) -> subprocess.CompletedProcess[str]:
    """Run every contract on the package in that folder."""
    environment = {**os.environ, "PYTHONUTF8": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-c", LINT, str(config)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )


def loaded_after(code: str, roots: tuple[str, ...]) -> list[str]:
    """Tell which of these packages a new interpreter holds after it ran the code, or left with exit code 0."""
    program = f"""
import json, sys
try:
    {code}
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps([root for root in {roots!r} if root in sys.modules]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, list)
    return found


def test_the_layers_hold() -> None:
    """Every contract of import-linter in pyproject.toml is kept by the package."""
    done = lint(PACKAGE.parent, CONFIG)
    if done.returncode != 0:
        remedy = "Ask for what you need as an argument (a port of spec/ports), or move the code to the layer it needs."
        hold([done.stdout + done.stderr], remedy)
    assert f"Contracts: {len(LINTER['contracts'])} kept, 0 broken." in done.stdout


def test_planted_imports_are_seen(tmp_path: Path) -> None:
    """Every contract breaks on an empty copy of the package with a forbidden import for each, and names the import."""
    for file in PACKAGE.rglob("*.py"):
        copy = tmp_path / "holdfast" / file.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("")
    for path, code in FAULTS.items():
        (tmp_path / "holdfast" / path).write_text(code)
    (tmp_path / "pyproject.toml").write_text(CONFIG.read_text())
    done = lint(tmp_path, tmp_path / "pyproject.toml")
    assert done.returncode == 1
    assert f"Contracts: 0 kept, {len(LINTER['contracts'])} broken." in done.stdout, done.stdout + done.stderr
    for words in (
        "holdfast.engine.keep -> holdfast.storage.local",
        "holdfast.decide.interval -> holdfast.engine.keep",
        "holdfast.spec.leaves -> torch",
        "holdfast.storage.local -> numpy",
        "toolbox",
    ):
        assert words in done.stdout


def test_every_module_has_its_layer() -> None:
    """The list of layers names each top-level module of the package, once, and none that is gone."""
    (contract,) = [contract for contract in LINTER["contracts"] if contract["type"] == "layers"]
    assert contract["exhaustive"] is True
    listed = [name.strip() for line in contract["layers"] for name in line.split("|")]
    there = [p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()]
    assert sorted(listed) == sorted(name for name in there if name != "__init__"), (
        "give each top-level module its line in [tool.importlinter] of pyproject.toml"
    )


@pytest.mark.parametrize("code", LIGHT)
def test_imports_stay_light(code: str) -> None:
    """What starts often and must start fast loads no torch, and the keeper nothing for people either."""
    hold(loaded_after(code, LIGHT[code]), f"Import these where they are used, in a function; they load after `{code}`:")


def test_a_heavy_import_is_seen() -> None:
    """The look into another interpreter sees what is loaded there, also after a clean exit."""
    assert loaded_after("import yaml; sys.exit(0)", ("torch", "yaml")) == ["yaml"]
